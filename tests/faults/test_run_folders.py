"""Run folders under fault: nothing is lost, and nothing that is wrong goes unnoticed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bayesrnn import files
from bayesrnn.cli import main

SIZES = [
    "--preset",
    "tiny",
    "--method",
    "bbb",
    "--hidden",
    "8",
    "--batch-size",
    "4",
    "--unroll",
    "6",
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Lines of words whose order can be learnt."""
    folder = tmp_path_factory.mktemp("text")
    for split, lines in [("train", 60), ("valid", 20), ("test", 20)]:
        words = [" ".join(f"w{(3 * i + j) % 11}" for j in range(9)) for i in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(words) + "\n")
    return folder


def _arguments(text: Path, run: Path, *more: str) -> list[str]:
    return ["train", *SIZES, "--data", str(text), "--run", str(run), "--no-tensorboard", *more]


def _train(text: Path, run: Path, *more: str) -> Path:
    main(_arguments(text, run, *more))
    return run


def _fails(capsys, *arguments: str) -> str:
    """The one line with which a command ends with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    error = capsys.readouterr().err
    assert exit_.value.code == 2, error
    assert error.count("\n") == 1, error
    return error


def _resume(run: Path, *more: str) -> None:
    main(["train", "--resume", "--run", str(run), "--no-tensorboard", *more])


def _bytes(run: Path, *names: str) -> list[bytes]:
    return [(run / name).read_bytes() for name in names]


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory) -> Path:
    """A run of three epochs that was never stopped."""
    return _train(text, tmp_path_factory.mktemp("runs") / "whole", "--epochs", "3")


@pytest.fixture
def half(text, tmp_path) -> Path:
    """The same run after two epochs; to be resumed with three."""
    return _train(text, tmp_path / "half", "--epochs", "2")


def _check_equal(run: Path, whole: Path) -> None:
    names = ("metrics.jsonl", "weights.safetensors")
    assert _bytes(run, *names) == _bytes(whole, *names)


# ---------------------------------------------------------------------- 2: two trainers in one folder


def test_a_second_trainer_is_refused_and_does_no_damage(half, whole, capsys):
    with files.locked(half):
        before = {p.name: p.read_bytes() for p in half.iterdir() if p.name != files.LOCK}
        error = _fails(capsys, "train", "--resume", "--run", str(half), "--epochs", "3")
        assert re.search(rf"is in use by process {os.getpid()} on .*, since 20", error)
        assert before == {p.name: p.read_bytes() for p in half.iterdir() if p.name != files.LOCK}
    _resume(half, "--epochs", "3")
    _check_equal(half, whole)


def test_the_lock_ends_with_its_process(tmp_path):
    code = (
        "import sys, time, pathlib; from bayesrnn.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with (
        pytest.raises(ValueError, match=f"in use by process {process.pid} on"),
        files.locked(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with files.locked(tmp_path):
        pass


# ---------------------------------------------------------------------- 3: stopped very early


def test_a_run_that_has_only_its_config_can_be_resumed(text, whole, tmp_path):
    run = tmp_path / "early"
    run.mkdir()
    for name in ("config.toml", "vocabulary.txt"):
        shutil.copy(whole / name, run / name)
    _resume(run)
    _check_equal(run, whole)


def test_a_setting_that_cannot_be_leaves_no_folder(text, tmp_path, capsys):
    _fails(capsys, *_arguments(text, tmp_path / "run", "--optimizer", "none"))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- 4: files that do not belong together


def test_a_changed_vocabulary_is_noticed(half, capsys):
    words = (half / "vocabulary.txt").read_text().splitlines()
    (half / "vocabulary.txt").write_text("\n".join([*words[:2], *sorted(words[2:])[::-1]]) + "\n")
    for command in (["evaluate", str(half)], ["train", "--resume", "--run", str(half)]):
        assert re.search(
            r"vocabulary\.txt has changed since .*; restore it", _fails(capsys, *command)
        )


def test_weights_and_checkpoints_of_another_run_are_noticed(text, half, tmp_path, capsys):
    other = _train(text, tmp_path / "other", "--epochs", "2", "--seed", "5")
    shutil.copy(half / "weights.safetensors", other)
    assert "was written with seed = 0, but config.toml has 5" in _fails(
        capsys, "evaluate", str(other)
    )
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        shutil.copy(half / name, other)
    error = _fails(capsys, "train", "--resume", "--run", str(other), "--epochs", "3")
    assert "checkpoint.safetensors was written with seed = 0, but config.toml has 5" in error


@pytest.mark.parametrize(("setting", "value"), [("seed = 0", "seed = 1"), ("lr = 1.0", "lr = 2.0")])
def test_an_edited_config_is_noticed(half, capsys, setting, value):
    config = (half / "config.toml").read_text()
    assert setting in config
    (half / "config.toml").write_text(config.replace(setting, value, 1))
    for command in (["evaluate", str(half)], ["train", "--resume", "--run", str(half)]):
        assert "one of them was edited" in _fails(capsys, *command)


def test_another_text_of_equal_length_is_noticed(text, half, tmp_path, capsys):
    other = shutil.copytree(text, tmp_path / "other")
    words = (other / "train.txt").read_text()
    (other / "train.txt").write_text(words.replace("w1 w2", "w2 w1", 1))
    command = ["train", "--resume", "--run", str(half), "--epochs", "3", "--data", str(other)]
    assert "these are not the training data that" in _fails(capsys, *command)


def test_data_may_move_and_a_run_may_be_extended(text, half, whole, tmp_path):
    moved = shutil.copytree(text, tmp_path / "moved")
    _resume(half, "--epochs", "3", "--data", str(moved))
    _check_equal(half, whole)
    main(["evaluate", str(half)])


# ---------------------------------------------------------------------- 5: what is not ours


def test_hidden_files_of_others_stay(half, whole):
    (half / ".env").write_text("secret")
    (half / ".git").mkdir()
    ours = half / f"{files.PREFIX}0123456789abcdef{files.SUFFIX}"
    ours.mkdir()
    (ours / "file").write_text("half a checkpoint")
    _resume(half, "--epochs", "3")
    assert (half / ".env").read_text() == "secret"
    assert (half / ".git").is_dir()
    assert not ours.exists()
    _check_equal(half, whole)


# ---------------------------------------------------------------------- 7: damage


def _damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "torn":
        path.write_bytes(data[:-20])
    elif how == "zeros":
        path.write_bytes(bytes(len(data)))
    elif how == "bit":
        data[-20] ^= 1
        path.write_bytes(data)
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "zeros", "bit", "empty", "gone"])
def test_a_damaged_checkpoint_is_survived(half, whole, how, capsys):
    _damage(half / "checkpoint.safetensors", how)
    _resume(half, "--epochs", "3")
    assert "Resuming from the checkpoint before it." in capsys.readouterr().err
    _check_equal(half, whole)
    assert len((half / "timing.jsonl").read_text().splitlines()) == 3


def test_two_damaged_checkpoints_are_noticed(half, capsys):
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        _damage(half / name, "bit")
    error = _fails(capsys, "train", "--resume", "--run", str(half), "--epochs", "3")
    assert "checkpoint.safetensors is damaged" in error


@pytest.mark.parametrize("how", ["zeros", "empty", "gone"])
def test_damaged_metrics_are_noticed(half, how, capsys):
    _damage(half / "metrics.jsonl", how)
    error = _fails(capsys, "train", "--resume", "--run", str(half), "--epochs", "3")
    assert re.search(
        r"metrics\.jsonl is (shorter than|not as it was) at the last checkpoint", error
    )


@pytest.mark.parametrize("how", ["torn", "bit"])
def test_metrics_damaged_after_the_checkpoint_before_are_survived(half, whole, how, capsys):
    _damage(half / "metrics.jsonl", how)
    _resume(half, "--epochs", "3")
    assert "Resuming from the checkpoint before it." in capsys.readouterr().err
    _check_equal(half, whole)


@pytest.mark.parametrize("how", ["cut", "bit", "gone"])
def test_damaged_weights_are_restored(half, whole, how, capsys):
    intact = (half / "weights.safetensors").read_bytes()
    _damage(half / "weights.safetensors", how)
    _resume(half)  # nothing to train, so nothing is written but what is mended
    assert "The weights were restored from the checkpoint." in capsys.readouterr().err
    assert (half / "weights.safetensors").read_bytes() == intact
    _resume(half, "--epochs", "3")
    _check_equal(half, whole)


def test_a_torn_line_of_timing_is_named_and_mended(half, whole, capsys):
    lines = (half / "timing.jsonl").read_text().splitlines(keepends=True)
    (half / "timing.jsonl").write_text(lines[0] + lines[1][:9])  # as a crash leaves it
    main(["compare", str(half)])
    (half / "timing.jsonl").write_text(lines[0] + lines[1][:9] + "\n")
    assert "timing.jsonl, line 2, is damaged" in _fails(capsys, "compare", str(half))
    _resume(half, "--epochs", "3")
    assert "The other lines were kept." in capsys.readouterr().err
    epochs = [line["epoch"] for line in files.JsonLines(half / "timing.jsonl").read()]
    assert epochs == [1, 3]
    _check_equal(half, whole)
    main(["compare", str(half)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrics.jsonl", "metrics.jsonl is not as it was at the last checkpoint"),
        ("timing.jsonl", "timing.jsonl, line 1, was changed: its checksum does not match"),
    ],
)
def test_a_changed_figure_is_noticed(half, name, message, capsys):
    text = (half / name).read_text()
    digit = re.search(r"\.\d*?([0-8])", text)
    assert digit is not None
    at = digit.start(1)
    (half / name).write_text(text[:at] + str(int(text[at]) + 1) + text[at + 1 :])
    assert message in _fails(capsys, "compare", str(half))


def test_a_doubled_line_of_metrics_is_noticed(half, capsys):
    text = (half / "metrics.jsonl").read_text()
    (half / "metrics.jsonl").write_text(text + text.splitlines(keepends=True)[-1])
    assert "its lines are not in order" in _fails(capsys, "compare", str(half))


def test_missing_weights_are_noticed_by_compare(half, whole, capsys):
    (half / "weights.safetensors").unlink()
    assert "weights.safetensors is missing" in _fails(capsys, "compare", str(whole), str(half))


@pytest.mark.parametrize("name", ["data", "epochs", "patience", "batch_size"])
def test_a_lost_line_of_the_config_is_noticed(half, name, capsys):
    lines = (half / "config.toml").read_text().splitlines(keepends=True)
    rest = [line for line in lines if not line.startswith(f"{name} =")]
    assert len(rest) == len(lines) - 1
    (half / "config.toml").write_text("".join(rest))
    message = f"config.toml is damaged: it has no {name!r}"
    assert message in _fails(capsys, "generate", str(half))
    assert message in _fails(capsys, "train", "--resume", "--run", str(half))


def test_a_damaged_line_of_metrics_is_named(half, capsys):
    lines = (half / "metrics.jsonl").read_text().splitlines(keepends=True)
    (half / "metrics.jsonl").write_text('{"kind": \n' + "".join(lines))
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        (half / name).unlink()  # so that nothing tells what the lines were
    assert "metrics.jsonl, line 1, is damaged" in _fails(capsys, "compare", str(half))


# ---------------------------------------------------------------------- signals, and what results depend on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves(text, whole, tmp_path, number):
    run = tmp_path / "run"
    more = ("--epochs", "3", "--checkpoint-minutes", "60")
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesrnn", *_arguments(text, run, *more)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (run / "checkpoint.safetensors").exists():
        time.sleep(0.001)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    if process.returncode != 0:  # it may have been quicker
        assert process.returncode == 128 + number
        assert "resume with:" in output
    _resume(run)
    _check_equal(run, whole)


def test_other_conditions_are_said(half, capsys, monkeypatch):
    capsys.readouterr()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    _resume(half, "--epochs", "3")
    assert re.search(r"under other conditions \(threads \d+, now 77\)", capsys.readouterr().err)


# ---------------------------------------------------------------------- verify


def test_verify_says_which_file_is_damaged(whole, half, capsys):
    capsys.readouterr()
    main(["verify", str(whole), str(half)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert all(line.startswith("ok ") for line in lines)
    _damage(half / "checkpoint.safetensors", "bit")
    (half / "vocabulary.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit) as exit_:
        main(["verify", str(half)])
    assert exit_.value.code == 1
    output = capsys.readouterr().out
    assert "DAMAGED" in output
    assert re.search(r"DAMAGED +\S+/checkpoint\.safetensors .*checksum", output)
    assert re.search(r"DAMAGED +\S+/vocabulary\.txt .*has changed", output)
    assert re.search(r"ok +\S+/weights\.safetensors", output)
    assert re.search(r"ok +\S+/config\.toml", output)


def test_verify_of_what_is_no_run(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, said in (
        ("none", "no such run folder"),
        ("empty", "not a run"),
        ("file", "no such run folder"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["verify", str(tmp_path / name)])
        assert exit_.value.code == 2
        assert said in capsys.readouterr().err


def test_verify_of_a_run_without_its_config(half, capsys):
    (half / "config.toml").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main(["verify", str(half)])
    assert exit_.value.code == 1
    assert re.search(r"DAMAGED +\S+/config\.toml", capsys.readouterr().out)
