"""The benchmarks run; what they measure is not asserted."""

from __future__ import annotations

import csv
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bayesrnn.cli import main
from bayesrnn.kernels import lstm

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("training_step.py", "--hidden 8 --steps 1", "| 8 | sharpened |"),
        pytest.param(
            "lstm.py",
            "--units 4 --rounds 1",
            "| 4 |",
            marks=pytest.mark.skipif(
                not lstm.torch_computes_bf16(), reason="torch has no LSTM in bf16 here"
            ),
        ),
        ("kl_gradient.py", "--weights 1000", "| 0.75 | -2 | -8 |"),
        ("corpus.py", "--words 21000 42000 --types 20000 --steps 2", "| 42,000 | 10,000 |"),
    ],
)
def test_a_benchmark_prints_its_table(script, arguments, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, *arguments.split()])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert expected in capsys.readouterr().out


def test_the_scores_of_foreign_text_are_those_of_the_command(trained, monkeypatch, capsys):
    run, words = str(trained("bbb")), "400"
    monkeypatch.setattr(sys, "argv", ["foreign.py", run, "--samples", "3", "--words", words])
    runpy.run_path(str(BENCHMARKS / "foreign.py"), run_name="__main__")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    found = {row[0].removeprefix("| "): row[1] for row in rows if len(row) > 1}
    main(["uncertainty", run, "--samples", "3", "--words", words, "--noise", "0.1", "--json"])
    gaps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (auroc,) = (g["auroc"] for g in gaps if g["text"] == "reversed" and g["samples"] == 3)
    names = {"-log p of known words": "surprise", "entropy": "entropy"}
    names["mutual information"] = "mutual_information"
    for name, signal in names.items():
        assert float(found[name]) == pytest.approx(auroc[signal], abs=6e-4)


def test_the_benchmark_of_ranks_prints_its_table():
    sizes = ["--preset", "tiny", "--words", "50", "--streams", "2", "--ranks", "2"]
    arguments = [*sizes, "--rounds", "1", "--steps", "1"]
    for _ in range(3):  # the port that was free may be another test's by then
        done = subprocess.run(
            [sys.executable, BENCHMARKS / "ranks.py", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode == 0:
            break
    assert "2 ranks, words/s" in done.stdout, done.stderr


def test_learning_curves_outlive_their_run(trained, tmp_path, monkeypatch, capsys):
    def curves(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["curves.py", *map(str, arguments)])
        runpy.run_path(str(BENCHMARKS / "curves.py"), run_name="__main__")
        return capsys.readouterr().out

    run, table, picture = trained("bbb"), tmp_path / "curves.csv", tmp_path / "curves.png"
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in epochs if line["kind"] == "epoch"]
    assert "first, " in curves(table, "--add", "first", run)
    curves(table, "--add", "second, with a comma", run)
    curves(table, "--add", "first", run)  # takes the place of what was recorded
    header, *rows = csv.reader(table.read_text().splitlines())
    assert header == ["run", "epoch", "validation", "training"]
    assert [row[0] for row in rows] == ["first"] * len(epochs) + ["second, with a comma"] * len(
        epochs
    )
    for row, line in zip(rows, 2 * epochs, strict=True):
        assert int(row[1]) == line["epoch"]
        assert float(row[2]) == pytest.approx(line["valid_perplexity"], rel=1e-5)
        assert float(row[3]) == pytest.approx(line["train_perplexity"], rel=1e-5)
    assert f"wrote {picture}" in curves(table, "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_wrong_input_to_the_learning_curves_is_one_line(tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    for arguments, message in [
        ([other], "the columns must be"),
        ([tmp_path / "none.csv"], "none.csv"),
        ([tmp_path / "new.csv", "--add", "name", tmp_path / "no-run"], "no-run"),
        ([BENCHMARKS.parent / "docs/curves.csv", "--out", tmp_path / "no/a.png"], "no such folder"),
    ]:
        monkeypatch.setattr(sys, "argv", ["curves.py", *map(str, arguments)])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_path(str(BENCHMARKS / "curves.py"), run_name="__main__")
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(tmp_path.iterdir()) == [other]
