"""What the training commands say, and when."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
import torch

from bayesrnn.cli import main, training_output
from bayesrnn.training.experiment import open_run

SMALL = ["--hidden", "12", "--batch-size", "8", "--unroll", "10", "--no-tensorboard"]


@pytest.fixture
def run_of_four(text_folder, tmp_path, capsys):
    """A run of four epochs, and a function that resumes it and returns what is printed."""
    run = tmp_path / "run"
    new = ["--data", str(text_folder), "--method", "lstm", "--epochs", "4", "--run", str(run)]
    main(["train", *SMALL, *new, "--json"])
    capsys.readouterr()

    def resume(*options: str) -> str:
        main(["train", "--resume", "--run", str(run), "--no-tensorboard", *options])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run, resume


@pytest.mark.parametrize("options", [[], ["--epochs", "4"], ["--epochs", "3"]])
def test_a_run_with_nothing_left_to_do_says_so_and_how_to_train_it_further(run_of_four, options):
    run, resume = run_of_four
    before = {path: path.read_bytes() for path in run.iterdir() if path.suffix}
    said = resume(*options)
    assert said.startswith(f"{run} has trained for 4 epochs already (best validation perplexity ")
    assert said.endswith("; give --epochs 5 or more to train further.\n")
    assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in run.iterdir() if path.suffix} == before
    assert json.loads(resume(*options, "--json"))["epoch"] == 4


def test_a_run_out_of_patience_says_so(text_folder, tmp_path, capsys):
    run = tmp_path / "run"
    new = ["--data", str(text_folder), "--method", "lstm", "--lr", "1e-9", "--patience", "1"]
    main(["train", *SMALL, *new, "--epochs", "50", "--run", str(run), "--json"])
    epochs = json.loads(capsys.readouterr().out)["epoch"]
    main(["train", "--resume", "--run", str(run), "--no-tensorboard"])
    assert "; give --patience 2 or more to train further.\n" in capsys.readouterr().out
    main(["train", "--resume", "--run", str(run), "--epochs", str(epochs), "--no-tensorboard"])
    cure = f"give --epochs {epochs + 1} or more and --patience 2 or more to train further."
    assert cure in capsys.readouterr().out


def test_a_run_stopped_early_may_be_asked_for_less_and_keeps_its_plan(run_of_four):
    """The epochs of the settings stay those that were planned."""
    run, resume = run_of_four
    resume("--epochs", "2")
    assert open_run(run).config.epochs == 4
    assert "epoch   5" in resume("--epochs", "5")


def test_a_log_begins_with_what_is_trained_and_goes_on_while_an_epoch_lasts(
    text_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(training_output, "SECONDS_BETWEEN_LINES", 0.0)
    run = tmp_path / "run"
    options = ["--data", str(text_folder), "--method", "bbb", "--epochs", "2", "--run", str(run)]
    main(["train", *SMALL, *options])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        f"training bbb on {text_folder}: 5,000 words, vocabulary 32; 3,296 weights, 2 epochs of 63 steps, "
        f"{torch.get_num_threads()} thread, run folder {run}"
    )
    assert not [line for line in rest if "compiling" in line]  # so few weights are not worth it
    line = r"epoch   [12]  [ \d]\d%  perplexity +[\d.]+(  KL [\d.]+ nats/word)?"
    pace = r"  [\d,]+ words/s  \d+ s left"
    assert len([text for text in rest if re.fullmatch(line + pace, text)]) > 50
    assert [text[:9] for text in rest if "valid" in text][:2] == ["epoch   1", "epoch   2"]
    main(["train", "--resume", "--run", str(run), "--epochs", "3", "--no-tensorboard"])
    assert "3 epochs of 63 steps, after 2 epochs and 0 steps, 1 thread, " in capsys.readouterr().out


def test_lines_are_not_more_frequent_than_that(text_folder, tmp_path, capsys):
    options = ["--data", str(text_folder), "--method", "lstm", "--epochs", "2"]
    main(["train", *SMALL, *options, "--run", str(tmp_path / "run")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["training", "epoch", "epoch", "best", "wrote"]


def test_that_it_compiles_is_said_before_the_first_step(text_folder, tmp_path):
    """In a process whose output is a file, which is read while it runs."""
    code = (
        "import sys\n"
        "from bayesrnn.kernels import one_pass\n"
        "one_pass.LONG = 100\n"
        "from bayesrnn.tasks.language.task import LanguageTask\n"
        "def step(*_): raise ValueError(open(sys.argv[1]).read())\n"
        "LanguageTask.step = step\n"
        "from bayesrnn.cli import main\n"
        "main(sys.argv[2:])\n"
    )
    log = tmp_path / "log.txt"
    arguments = ["train", *SMALL, "--data", str(text_folder), "--run", str(tmp_path / "run")]
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", code, str(log), *arguments],
            stdout=file, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("bayesrnn: training bbb on ")
    assert done.stderr.count("\\ncompiling the passes over the weights") == 1


def test_in_a_terminal_there_is_the_same_line_and_a_bar(text_folder, tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bayesrnn", "train", *SMALL, "--method", "lstm"]
    command += ["--data", str(text_folder), "--epochs", "2", "--run", "run"]
    process = subprocess.Popen(command, stdout=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 10_000)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.decode())
    assert text.startswith(f"training lstm on {text_folder}: 5,000 words")
    assert text.index("starting") < text.index("epoch 1") < text.index("best validation perplexity")
    assert "epoch   2  lr" in text


def test_signals_do_what_they_did_before_also_after_training_has_failed(text_folder, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    options = ["--data", str(text_folder), "--method", "lstm", "--lr", "1e38", "--clip", "inf"]
    with pytest.raises(SystemExit) as exit_:
        main(["train", *SMALL, *options, "--run", str(tmp_path / "run"), "--json"])
    assert exit_.value.code == 1  # it diverged
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (100, "2 min"), (12_000, "3 h 20 min")]
)
def test_durations(seconds, text):
    assert training_output.duration(seconds) == text


def test_training_on_the_beginning_of_a_text(text_folder, tmp_path, capsys):
    options = (
        f"--data {text_folder} --hidden 8 --batch-size 4 --unroll 5 --epochs 1 --no-tensorboard"
    )
    main(f"train {options} --train-words 400 --run {tmp_path}/run".split())
    assert f"{text_folder}: 400 words" in capsys.readouterr().out
    main(f"train --resume --run {tmp_path}/run --epochs 2".split())
    assert len(open_run(tmp_path / "run").read_metrics("epoch")) == 2
