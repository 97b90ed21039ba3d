"""`bayesrnn mnist`, and the other commands on its runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from bayesrnn.cli import main
from tests.cli.test_language_model import fail as fail

OPTIONS = "--hidden 24 --batch-size 32 --no-tensorboard --json"


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    folder, done = tmp_path_factory.mktemp("digits"), {}

    def run(method: str, *more: str):
        key = "-".join([method, *more])
        if key not in done:
            done[key] = folder / key.replace("-", "")
            words = f"mnist --method {method} --epochs 12 {OPTIONS} --run {done[key]}".split()
            main([*words, *more])
        return done[key]

    return run


def test_every_method_learns(digits_run, capsys):
    runs = [digits_run(method) for method in ("sgd", "dropout", "bbb", "sharpened")]
    runs.append(digits_run("bbb", "--network", "lenet"))
    runs.append(digits_run("bbb", "--kl-weighting", "geometric"))
    capsys.readouterr()
    main(["compare", *map(str, runs), "--json", "--samples", "3"])
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 6
    for row in rows:
        assert row["test_error"] < 0.5, row  # a guess has 0.9
        assert row["epochs"] == 12
        assert (row["kl_per_example"] is None) == (row["method"] in ("sgd", "dropout"))
        assert (row["test_error_samples"] is None) == (row["method"] == "sgd")
    main(["compare", *map(str, runs), "--markdown"])
    assert capsys.readouterr().out.startswith("| run | method | network |")


def test_resumed_after_ctrl_c_it_is_the_same_run(tmp_path, digits_run):
    whole = digits_run("sharpened")
    broken = tmp_path / "broken"
    words = f"mnist --method sharpened --epochs 12 {OPTIONS} --run {broken}".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesrnn", *words], stdout=subprocess.DEVNULL
    )
    while not (broken / "weights.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait()
    main(["mnist", "--resume", "--run", str(broken), "--json", "--no-tensorboard"])
    for name in ("metrics.jsonl", "weights.safetensors", "checkpoint.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_report(digits_run, tmp_path, capsys):
    page = tmp_path / "page.html"
    runs = [str(digits_run("bbb")), str(digits_run("sgd"))]
    main(["report", *runs, "--out", str(page), "--samples", "2"])
    text = page.read_text()
    for words in (
        "Comparison",
        "free energy",
        "Rotated digits",
        "Mutual information",
        "Pruning",
        "The posterior of bbb",
    ):
        assert words in text
    assert "98% dropped" in text


def test_bad_input(fail, digits_run, trained, tmp_path):
    run = digits_run("bbb")
    cases = [
        (("mnist", "--data", tmp_path / "none", "--run", tmp_path / "r"), "no such folder"),
        (("mnist", "--data", tmp_path, "--run", tmp_path / "r"), "neither train-images"),
        (("mnist", "--method", "lstm", "--run", tmp_path / "r"), "unknown method 'lstm'"),
        (("mnist", "--valid", 5000, "--run", tmp_path / "r"), "leaves none to train on"),
        (("mnist", "--pixels", 5, "--run", tmp_path / "r"), "the images of digits are 8x8"),
        (("mnist", "--run", run), "exists already"),
        (("mnist", "--resume", "--run", run, "--lr", 0.2), "cannot be changed with --resume"),
        (("mnist", "--resume", "--run", trained("lstm")), "needs one of `bayesrnn mnist`"),
        (("compare", run, trained("lstm")), "give runs of one experiment"),
        (
            ("report", run, trained("lstm"), "--out", tmp_path / "p.html"),
            "give runs of one experiment",
        ),
    ]
    for arguments, message in cases:
        assert message in fail(*arguments), arguments
    assert list(tmp_path.iterdir()) == []
