"""What a text, a file name or a header says is shown, and never obeyed by the terminal that shows it."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.cli import main
from bayesrnn.report.table import markdown_table, text_table
from bayesrnn.storage import load_tensors, save_tensors
from tests.faults.commands import Outcome, run

HOSTILE = [
    *(
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "[/red]",
        "[bold]",
        "<script>alert(1)</script>",
        "é",
        "\u202etxt",
    ),
    *("\x9b31m", "$x$", "&amp;"),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, in a folder of a bad name, on a text of bad words."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "text").mkdir()
    random = Random(0)
    for split in ("train", "valid", "test"):
        lines = [" ".join(random.choices(HOSTILE, k=6)) for _ in range(20)]
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    where = folder / "[/red] \x1b[31m<b>\n$"  # a folder "[", and in it one that ends the markup
    sizes = "--hidden 4 --layers 1 --batch-size 2 --unroll 5 --epochs 1 --no-tensorboard --json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESRNN_CACHE", str(folder / "cache"))
        outcome = run("train", "--data", folder / "text", "--run", where, *sizes.split())
    assert outcome.fault() is None, str(outcome)
    return where


def _shown(*arguments: object) -> Outcome:
    """The command succeeds, and what it prints is plain."""
    outcome = run(*arguments)
    assert outcome.fault() is None, str(outcome)
    assert outcome.code == 0, outcome.err
    return outcome


def test_words_are_shown_and_not_obeyed(hostile, tmp_path):
    found = _shown("generate", hostile, "--words", "200", "--temperature", "3")
    assert "\\x1b[31mred" in found.out
    assert "[/red]" in found.out
    assert "é" in found.out
    text = tmp_path / "text.txt"
    text.write_text(" ".join(HOSTILE) + "\n")
    found = _shown("score", hostile, text)
    assert "\\x1b[31mred" in found.out.replace("\n", "")
    assert "\\x9b31m" in found.out.replace("\n", "")
    words = [
        json.loads(line)["word"]
        for line in _shown("score", hostile, text, "--json").out.splitlines()
    ]
    assert words == [*HOSTILE, "<eos>"]  # JSON is data: nothing is changed


@pytest.mark.parametrize(
    "command",
    ["evaluate RUN", "compare RUN RUN", "compare RUN --markdown", "calibration RUN --samples 1"],
)
def test_names_of_folders_are_shown(hostile, command):
    arguments = [str(hostile) if part == "RUN" else part for part in command.split()]
    assert "red] \\x1b[31m<b>" in _shown(*arguments).out


def test_an_unknown_word_of_a_prompt(hostile):
    found = _shown("generate", hostile, "--prompt", "\x1b[2Jnone [red]", "--words", "2")
    assert "'\\x1b[2Jnone' is not in the vocabulary" in found.err


def test_errors_are_one_plain_line(hostile, tmp_path):
    for name in ("\x1b[31m", "a\nb", "[/red]", "\udcff", "\u202e", "\x9b31m"):
        for command in ("evaluate", "inspect", "compare", "generate"):
            outcome = run(command, tmp_path / name)
            assert outcome.fault() is None, str(outcome)
            assert outcome.code == 2
            assert outcome.err.count("\n") == 1


def test_messages_about_options_are_plain(hostile):
    for option in ("--nosuch\x1b[31m", "--split=\x1b[31m", "--samples=\x1b[31m"):
        outcome = run("evaluate", hostile, option)
        assert outcome.fault() is None, str(outcome)
        assert outcome.code == 2


def test_a_header_is_shown_literally(tmp_path):
    path = tmp_path / "posterior"
    bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(0.5)).save(path)
    tensors, header = load_tensors(path)
    for kind in ("mu", "rho"):
        tensors[f"{kind}.[/red]\x1b[31m"] = tensors.pop(f"{kind}.weight")
    header["select"] = ["[/red]\x1b[31m", "bias"]
    header["prior"] = {"name": "[bold]Normal[/]\x1b[31m", "x": "[/]"}
    save_tensors(path, tensors, header)
    found = _shown("inspect", path).out
    assert "[/red]\\x1b[31m" in found
    assert "[bold]Normal[/]\\x1b[31m(x=[/])" in found
    assert _shown("inspect", path, "--json")


def test_a_page_has_text_and_no_scripts(hostile, tmp_path):
    out = tmp_path / "page.html"
    words = ["--words", "0", "--samples", "1", "--streams", "2", "--other"]
    _shown("report", hostile, "--out", out, *words, hostile.parents[1] / "text")
    page = out.read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>" not in page.replace("<b></b>", "")


def test_figures_of_names_that_are_no_mathematics(hostile, tmp_path):
    found = _shown("calibration", hostile, "--samples", "0", "--out", tmp_path)
    assert "wrote" in found.out
    assert (tmp_path / "reliability.png").exists()


def test_generated_words_appear_as_they_come(hostile, monkeypatch):
    """Each word is flushed before the next is sampled."""
    flushed: list[str] = []

    class Watched(StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    seen: list[int] = []
    sample = torch.multinomial

    def counting(*args, **kwargs):
        seen.append(len(flushed[-1].split()) if flushed else 0)
        return sample(*args, **kwargs)

    monkeypatch.setattr(torch, "multinomial", counting)
    monkeypatch.setattr(sys, "stdout", Watched())
    main(["generate", str(hostile), "--words", "30"])
    assert len(seen) == 30
    assert seen[0] == 0
    assert 10 < seen[-1] < 30  # ends of sentences are words without a word


def test_a_terminal_that_has_no_such_letters(hostile):
    outcome = run("generate", hostile, "--words", "200", "--temperature", "3", encoding="ascii")
    assert outcome.fault() is None, str(outcome)
    assert "\\xe9" in outcome.out


def test_tables_keep_their_lines():
    rows = [["a\nb", "\x1b[31m"], ["c|d", "1"]]
    assert len(text_table(["x", "y"], rows).splitlines()) == 3
    assert "\x1b" not in text_table(["x", "y"], rows)
    assert markdown_table(["x", "y"], rows).splitlines()[-1] == "| c\\|d | 1 |"
