"""The command under torchrun: two ranks train, stop, die, hang, resume and evaluate."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch import distributed

from bayesrnn.cli import main

SMALL = [
    "--hidden",
    "8",
    "--batch-size",
    "6",
    "--unroll",
    "10",
    "--init-scale",
    "0.3",
    "--no-tensorboard",
]

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no torch.distributed"
)


def _start(arguments: Sequence[str | Path], *, of_torchrun: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [*of_torchrun.split(), "-m", "--", "bayesrnn", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


def _run(*arguments: str | Path, of_torchrun: str = "") -> tuple[int, str, str]:
    """The exit code of torchrun, what was printed, and our own lines on standard error."""
    process = _start(arguments, of_torchrun=of_torchrun)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, _own_lines(err)


def _own_lines(err: str) -> str:
    return "\n".join(re.findall(r"^(?:bayesrnn:|resumed|\d+%).*$", err, re.MULTILINE))


def _epochs(run: Path) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "epoch"]


def _ranks(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process ids of the ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for child in children:
        settings = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [int(s.removeprefix(b"RANK=")) for s in settings if s.startswith(b"RANK=")]
        found |= dict.fromkeys(ranks, int(child))
    return found


def _wait(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def by_two(text_folder, tmp_path_factory) -> Path:
    """A run that two ranks trained."""
    os.environ["BAYESRNN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    run = tmp_path_factory.mktemp("ranks") / "run"
    code, out, err = _run(*_new(text_folder, run))
    assert (code, err) == (0, "")
    assert out.count("epoch   3") == 1  # one rank speaks
    return run


def _new(text: Path, run: Path) -> list[str | Path]:
    return ["train", *SMALL, "--data", text, "--epochs", "3", "--run", run]


def test_two_ranks_learn(by_two):
    first, _, last = _epochs(by_two)
    assert last["valid_perplexity"] < first["valid_perplexity"] < 32  # a uniform guess has 32
    assert {p.name for p in by_two.iterdir() if not p.name.startswith(".")} == {
        *("config.toml", "metrics.jsonl", "timing.jsonl", "vocabulary.txt"),
        *("weights.safetensors", "checkpoint.safetensors", "checkpoint-previous.safetensors"),
    }
    timing = [json.loads(line) for line in (by_two / "timing.jsonl").read_text().splitlines()]
    assert timing[0]["words"] == 4998  # all words, not those of one rank


@pytest.mark.parametrize(
    "arguments",
    [
        "evaluate --streams 5 --samples 3 --json",  # the streams are divided
        "evaluate --samples 3 --dynamic --json",  # the samples are divided
        "uncertainty --samples 1 3 --noise 0.2 --words 300 --streams 1 --json",
        "score --text w1~w10~w13 --samples 3 --json",
        "compare --json",  # only the first rank works
    ],
)
def test_two_ranks_evaluate_as_one(by_two, capsys, arguments):
    command, *options = (word.replace("~", " ") for word in arguments.split())
    main([command, str(by_two), *options])
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    code, out, err = _run(command, by_two, *options)
    assert (code, err) == (0, "")
    together = [json.loads(line) for line in out.splitlines()]
    assert len(together) == len(alone) > 0
    for ours, theirs in zip(together, alone, strict=True):
        assert _rounded(ours) == _rounded(theirs)


def _rounded(value, within=1e-5):
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-4, abs=within)
    if isinstance(value, dict):
        # An AUROC counts pairs of 30 and 30 windows: rounding may decide two pairs that are almost equal.
        steps = {"auroc": 2.1 / 900}
        return {key: _rounded(item, steps.get(key, within)) for key, item in value.items()}
    return [_rounded(item, within) for item in value] if isinstance(value, list) else value


def test_resumed_by_one_process_it_says_so_and_goes_on(by_two, tmp_path, capsys):
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", by_two, copy], check=True)
    main(["train", "--resume", "--run", str(copy), "--epochs", "5", "--no-tensorboard"])
    assert "(ranks 2, now 1)" in capsys.readouterr().err
    assert _epochs(copy)[:3] == _epochs(by_two)
    assert _epochs(copy)[4]["valid_perplexity"] < _epochs(copy)[2]["valid_perplexity"]


def test_ctrl_c_then_resume_bit_for_bit(by_two, text_folder, tmp_path):
    run = tmp_path / "stopped"
    process = _start(_new(text_folder, run))
    _wait(lambda: (run / "metrics.jsonl").is_file() and bool(_epochs(run)))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert len(_epochs(run)) < 3
    code, _, err = _run("train", "--resume", "--run", run, "--no-tensorboard")
    assert (code, err) == (0, "")
    assert (run / "metrics.jsonl").read_bytes() == (by_two / "metrics.jsonl").read_bytes()
    assert (run / "weights.safetensors").read_bytes() == (
        by_two / "weights.safetensors"
    ).read_bytes()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_killed_rank_is_restarted_from_the_last_checkpoint(by_two, text_folder, tmp_path):
    run = tmp_path / "killed"
    often = [*_new(text_folder, run), "--checkpoint-minutes", "0"]
    process = _start(often, of_torchrun="--max-restarts 2")
    _wait(lambda: (run / "metrics.jsonl").is_file() and bool(_epochs(run)))
    os.kill(_ranks(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (run / "metrics.jsonl").read_bytes() == (by_two / "metrics.jsonl").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_killed_rank_ends_the_others(text_folder, tmp_path):
    run = tmp_path / "ended"
    process = _start([*_new(text_folder, run), "--epochs", "1000"])
    _wait(lambda: (run / "metrics.jsonl").is_file() and bool(_epochs(run)))
    os.kill(_ranks(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    said = [line for line in _own_lines(err).splitlines() if line]
    # torchrun may end the first rank before it has noticed.
    assert len(said) <= 1
    assert all("has ended; a training goes on from its last checkpoint" in s for s in said)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_rank_that_hangs_is_named(text_folder, tmp_path):
    run = tmp_path / "hanging"
    slow = [*_new(text_folder, run), "--epochs", "1000", "--rank-timeout", "3"]
    process = _start(slow, of_torchrun="--shutdown-timeout 1")
    _wait(lambda: (run / "metrics.jsonl").is_file() and bool(_epochs(run)))
    time.sleep(1.5)  # so that both have said how far they are
    os.kill(_ranks(process)[1], signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    named = r"^bayesrnn: rank 1 \(last seen at step [\d,]+\) has not answered for 3 s; a training"
    assert re.search(named, err, re.MULTILINE), err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --batch-size 1", "a minibatch of 1 cannot be divided into 2 parts (2 ranks)"),
        ("train --device cuda:77", "--device cuda:77: "),
        ("train --bogus 1", "unrecognized options: --bogus, 1"),
        ("evaluate nowhere", "nowhere: no such run folder."),
    ],
)
def test_wrong_input_is_said_once(text_folder, tmp_path, arguments, said):
    command, *rest = arguments.split()
    own = ["--data", text_folder, "--run", tmp_path / "run"] if command == "train" else []
    code, out, err = _run(command, *rest, *own)
    assert code == 1  # torchrun's; that of the ranks is 2
    assert out == ""
    assert err.count("\n") == 0
    assert said in err
    assert not (tmp_path / "run").exists()


def test_ranks_with_different_settings(text_folder, tmp_path):
    """Started by hand, as on two machines: one line, on one of them."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
    processes = []
    for rank, lr in ((0, "1"), (1, "0.5")):
        command = [sys.executable, "-m", "bayesrnn", *map(str, _new(text_folder, tmp_path / "run"))]
        own = {**os.environ, **meet, "RANK": str(rank), "LOCAL_RANK": "0"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([*command, "--lr", lr], env=own, **pipes))
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    lines = [line for out, err in said for line in (out + err).splitlines()]
    assert lines == [
        "bayesrnn: the ranks have different settings or data: lr = 1.0 on rank 0, lr = 0.5 on rank 1."
    ]
    assert not (tmp_path / "run").exists()


def test_others_that_cannot_be_reached(text_folder, tmp_path):
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2", "RANK": "1"}
    command = [sys.executable, "-m", "bayesrnn", *map(str, _new(text_folder, tmp_path / "run"))]
    done = subprocess.run(
        [*command, "--rank-timeout", "1"],
        env={**os.environ, **meet},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("bayesrnn: cannot meet the other processes at 127.0.0.1:")
    assert done.stderr.count("\n") == 1


def _free_port() -> str:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
