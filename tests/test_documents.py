"""Every block of README.md and docs/*.md runs, parses or exists; `tests/documents.py` finds them."""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import logging
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrnn
from bayesrnn import cli, methods
from bayesrnn.cli import arguments as options_of
from bayesrnn.cli import train
from bayesrnn.training import experiment
from tests import documents
from tests.documents import LANGUAGES, PAGES, ROOT, Block, blocks

ALL = [block for page in PAGES for block in blocks(page)]
COMMANDS_RUN = {"analysis.md", "runs.md"}
"""Pages whose commands are run, on a small text, in order with their python."""
OPTIONAL = {"accelerate", "huggingface_hub", "lightning", "peft", "sklearn", "transformers"}
"""Packages that a page may need beside bayesrnn; without them it is skipped."""
PLACEHOLDERS = {"COMMAND"}
"""What stands for any command."""


def _of(*languages: str) -> Any:
    found = [block for block in ALL if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=[block.id for block in found])


# ---------------------------------------------------------------------- what there is


def test_every_block_has_a_language_that_is_tested():
    assert {block.language for block in ALL} <= LANGUAGES
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(blocks(page)), page.name


@_of("")
def test_a_block_without_a_language_is_no_code(block):
    with pytest.raises(SyntaxError):
        compile(block.text, block.id, "exec")


# ---------------------------------------------------------------------- python


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the code of a page writes; and one process, as torchrun would start it."""
    monkeypatch.chdir(tmp_path)
    for name, value in [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")]:
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield
    if torch.distributed.is_initialized():  # one group for each page
        torch.distributed.destroy_process_group()
    with contextlib.suppress(ImportError):  # an Accelerator is shared by all that come after it
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is known to that page only."""
    monkeypatch.setattr(methods, "_SPECS", {**methods._SPECS})
    monkeypatch.setattr(experiment, "_MODULES", {**experiment._MODULES})


@pytest.fixture
def small(trained: Callable[[str], Path], text_folder: Path, tmp_path: Path) -> Path:
    """A small text, and the runs and files that the commands of a page read."""
    for method in ("lstm", "dropout", "bbb"):
        shutil.copytree(trained(method), tmp_path / "runs" / method)
    (tmp_path / "letter.txt").write_text("w1 w2 w3\n")
    return text_folder


def _run(found: list[Block], text: Path | None = None) -> dict[str, dict[str, Any]]:
    """Run blocks in order; the names that there are at the end of each section."""
    names: dict[str, Any] = {}
    sections = {}
    for block in found:
        try:
            if block.language == "sh":
                _run_commands(block, str(text))
            else:
                documents.run(block, names)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            pytest.skip(f"needs {error.name}")
        sections[block.section] = {**names}
    return sections


def _run_commands(block: Block, text: str) -> None:
    """As the shell would, but on a small text and with a small model."""
    for _, *arguments in _commands(block.text):
        words = [text if word == "pydocs" else word for word in arguments]
        if words[0] == "train":
            words += [*("--epochs", "1"), *("--hidden", "8"), *("--batch-size", "8")]
            words += [*("--unroll", "10"), "--no-tensorboard"]
        cli.main([file for word in words for file in sorted(glob.glob(word)) or [word]])


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")  # of Lightning, about torch, and its own modes
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging")
@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")  # of transformers
def test_a_page_runs(page, request, monkeypatch, capsys):
    torch.manual_seed(0)
    if page.name in COMMANDS_RUN:
        _run(blocks(page, "python", "diff", "sh"), request.getfixturevalue("small"))
    else:
        sections = _run(blocks(page, "python", "diff"))
        if page.name in CHECKS:
            CHECKS[page.name](sections, capsys.readouterr().out)
    for code in documents.inline_code(page):  # with what the page has registered
        if re.match(rf"({'|'.join(CHECKERS)})\s", code):
            _check_command(shlex.split(code), monkeypatch)


def _check_readme(sections: dict[str, dict[str, Any]], printed: str) -> None:
    """What the quick start prints is what the page shows, and the loop has learnt."""
    pairs = re.compile(r"tensor\(\[(\d\.\d+), (\d\.\d+)\]\)")
    shown, found = pairs.findall((ROOT / "README.md").read_text()), pairs.findall(printed)
    for ours, theirs in zip(found, shown, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert float(one) == pytest.approx(float(other), abs=0.15)
    (sure, border), (little, much) = found
    assert float(sure) > 0.97
    assert 0.1 < float(border) < 0.9
    assert float(much) > 10 * float(little)
    assert sections[""]["loss"] < 1.1  # of log 9 = 2.2 nats


def _check_guide(sections: dict[str, dict[str, Any]], _: str) -> None:
    names = sections["Files"]
    right = names["prediction"].probs[9:].argmax(-1) == (names["x"][9:] + 1) % 9
    assert right.double().mean() > 0.9
    assert torch.equal(names["again"].mu, names["posterior"].mu)
    assert torch.equal(names["again"].rho, names["posterior"].rho)


def _check_prediction(sections: dict[str, dict[str, Any]], _: str) -> None:
    """The numbers of the page are what it says."""
    names = sections["Scores"]
    assert 0.15 < names["scores"].rmse < 0.35  # the noise has sd 0.2
    assert names["prediction"].probs.shape == (200, 3)
    assert names["curve"].at(0.8) < names["curve"].random
    y = names["future"]
    assert 0.8 < ((names["low"] <= y) & (y <= names["high"])).double().mean() < 0.97
    covered = names["mask"].gather(-1, names["labels"][names["test"], None]).double().mean()
    assert 0.88 < covered <= 1


def _check_frameworks(sections: dict[str, dict[str, Any]], _: str) -> None:
    """Each framework has trained the network and its sigma."""
    assert len(sections) == 7
    for section, names in sections.items():
        if section in ("", "The Hub"):
            continue
        found = names["module"].posterior if section == "Lightning" else names["posterior"]
        assert bayesrnn.predict(found, names["x"]).probs.shape == (200, 2)
        assert found.named(found.rho)["first.weight"].std() > 1e-3, section  # 0 at the start
        right = found.model.eval()(names["x"]).argmax(-1) == names["data"].tensors[1]
        assert right.float().mean() > 0.8, section


CHECKS = {
    "README.md": _check_readme,
    "guide.md": _check_guide,
    "prediction.md": _check_prediction,
    "frameworks.md": _check_frameworks,
}
"""What the names at the end of each section, and what was printed, have to be."""


# ---------------------------------------------------------------------- the change to a loop


@_of("diff")
def test_the_loop_runs_before_the_change_too(block):
    torch.manual_seed(0)
    shown = [b for b in blocks(block.page, "python") if b.line < block.line]
    names = _run(shown)[block.section]
    exec(documents.before_change(block), names)
    assert "posterior_mu" not in dict(names["model"].named_parameters())
    assert names["loss"] < 1.1


@_of("diff")
def test_the_change_is_as_small_as_it_says(block):
    lines = {
        sign: [x[1:].split("#")[0].strip() for x in block.text.splitlines() if x[0] == sign]
        for sign in "+-"
    }
    assert len(set(lines["+"]) - set(lines["-"])) == 3
    assert set(lines["-"]) <= set(lines["+"])  # these are indented only


def test_the_quick_start_is_short():
    first = blocks(ROOT / "README.md", "python")[0].text
    lines = [line for line in first.splitlines() if line and "import" not in line]
    assert len(lines) <= 11


# ---------------------------------------------------------------------- commands


@_of("sh")
def test_the_commands_of_a_block_parse(block, monkeypatch):
    commands = _commands(block.text)
    assert commands
    for command in commands:
        _check_command(command, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "bayesrnn train --nonsense 1",
        "bayesrnn train --preset huge",
        "bayesrnn train --epochs many",
        "bayesrnn mnist --method lstm",
        "bayesrnn evaluate --samples 3",
        "bayesrnn nonsense runs/bbb",
        "python benchmarks/training_step.py --hiden 8",
        "python benchmarks/nonsense.py",
        "python -m tests.faults.campaign --nonsense",
        "make nonsense",
        "pip install bayesrnn[nonsense]",
        "rm -r runs",
        "torchrun --nproc-per-node 2 -m bayesrnn train --run runs/a",  # which it takes for --run-path
    ],
)
def test_a_command_that_would_not_work_is_noticed(command, monkeypatch):
    with pytest.raises((AssertionError, OSError, SystemExit, ValueError)):
        _check_command(shlex.split(command), monkeypatch)


def _commands(text: str) -> list[list[str]]:
    """The commands of a block of shell, one for each turn of a loop being enough."""
    text = text.replace("\\\n", " ")
    loops = dict(re.findall(r"^for (\w+) in (\S+).*; do$", text, re.MULTILINE))
    for name, value in loops.items():
        text = text.replace(f"${name}", value)
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [words for words in lines if words and words[0] not in ("for", "done")]


def _check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert words[0] in CHECKERS, f"{words[0]} is no command that is tested"
    CHECKERS[words[0]](words[1:], monkeypatch)


def _check_bayesrnn(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse as the command does, up to where it would begin its work."""
    if PLACEHOLDERS & set(arguments) or arguments[0].startswith("-"):
        return
    whole = [name for name in _command_names() if arguments == name.split()[: len(arguments)]]
    if whole:
        return  # its name alone, in a sentence

    def stop(*_: object) -> None:
        raise _Parsed

    for command in cli.COMMANDS.values():
        monkeypatch.setattr(command, "run", stop)
    monkeypatch.setattr(train, "_train", stop)
    # A run to resume, and its settings, would have to exist.
    given = [argument for argument in arguments if argument != "--resume"]
    options_of.check_places(given)
    for option, value in pairwise(given):
        if option == "--preset" and value.endswith(".toml"):  # which a sweep would have written
            Path(value).parent.mkdir(parents=True, exist_ok=True)
            Path(value).touch()
    with pytest.raises(_Parsed):
        cli._run(given)


def _command_names() -> list[str]:
    return [*(experiment.command for experiment in cli.experiments()), *cli.COMMANDS]


class _Parsed(Exception):
    """The arguments have been read."""


def _check_python(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the program, and stop it when it has read its arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *args: Any) -> None:
        parse(parser, *args)
        raise _Parsed

    is_module = arguments[0] == "-m"
    program, *given = arguments[1:] if is_module else arguments
    given = ["0" if argument.isupper() and len(argument) == 1 else argument for argument in given]
    run, name = (runpy.run_module, program) if is_module else (runpy.run_path, str(ROOT / program))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str((ROOT / program).parent))
        patch.setattr(sys, "argv", [program, *given])
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(_Parsed):
            run(name, run_name="__main__")


def _check_make(arguments: list[str], _: pytest.MonkeyPatch) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(arguments) <= set(targets)


def _check_pip(arguments: list[str], _: pytest.MonkeyPatch) -> None:
    """The extras are those of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert arguments[0] == "install"
    for extra in re.findall(r"bayesrnn\[([\w,]+)\]", " ".join(arguments)):
        assert set(extra.split(",")) <= set(project["optional-dependencies"])


def _check_torchrun(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun reads its own options and hands on ours, of which it could take some for its own."""
    from torch.distributed.run import get_args_parser

    given = ["0" if argument.isupper() else argument for argument in arguments]
    options = get_args_parser().parse_args(given)
    assert options.module
    assert options.training_script == "bayesrnn"
    _check_bayesrnn([a for a in options.training_script_args if a != "--"], monkeypatch)


CHECKERS = {
    "bayesrnn": _check_bayesrnn,
    "torchrun": _check_torchrun,
    "python": _check_python,
    "make": _check_make,
    "pip": _check_pip,
}


# ---------------------------------------------------------------------- files, links, figures


@_of("toml")
def test_toml_parses(block):
    tomllib.loads(block.text)


@_of("json")
def test_json_parses(block):
    json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_file_that_a_page_names_exists(page):
    for code in documents.inline_code(page):
        if re.fullmatch(r"(benchmarks|bayesrnn|docs|examples|tests)/[\w./*-]*", code):
            assert list(ROOT.glob(code.rstrip("/"))), f"{page.name}: {code}"
        elif re.fullmatch(r"[\w/]+/\w+\.py", code):
            assert (ROOT / "bayesrnn" / code).exists(), f"{page.name}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
        if not target.startswith("http"):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(linked), f"{page.name}: {target}#{anchor}"


@cache
def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_speeds_are_those_of_the_table():
    rows = re.findall(
        r"^\| (.+?) \| (\d+) \| ([\d.]+x) \|$",
        (ROOT / "docs" / "performance.md").read_text().partition("## Other libraries")[2],
        re.MULTILINE,
    )
    found = {name.split()[0].rstrip(","): (int(ms), speed) for name, ms, speed in reversed(rows)}
    own, speed = next((int(ms), speed) for name, ms, speed in rows if name == "bayesrnn, bbb")
    blitz, bayesian_torch = (found[name][0] / own for name in ("BLITZ", "bayesian-torch"))
    said = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"{speed} the speed of the dropout LSTM, {blitz:.1f} times that of BLITZ and "
        f"{bayesian_torch:.1f} times that of bayesian-torch"
    ) in said
