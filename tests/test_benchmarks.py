"""The benchmarks run; what they measure is not asserted."""

from __future__ import annotations

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
