"""`bayesrnn sweep`: end to end on a small text, with workers that are killed and stopped."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayesrnn.cli import main
from bayesrnn.report import extras
from bayesrnn.training.experiment import open_run

pytest.importorskip("optuna")

SPACE = """
trials = 4
[settings]
preset = "tiny"
method = "bbb"
epochs = 2
hidden = 8
layers = 1
batch_size = 8
unroll = 10
[space]
pi = [0.25, 0.75]
lr = { low = 0.3, high = 3.0, log = true }
"""
LONG = SPACE.replace("trials = 4", "trials = 2").replace("epochs = 2", "epochs = 12")


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys, text_folder):
    """Run the command in an own folder on the small text; what is printed."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SPACE)

    def run(*options: str, space: str = "mine.toml") -> str:
        capsys.readouterr()
        main(["sweep", space, "--data", str(text_folder), *options])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


def started(text_folder: Path, *options: str) -> subprocess.Popen[str]:
    """The same in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "bayesrnn", "sweep", "mine.toml"]
    command += ["--data", str(text_folder), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def epochs_of(folder: str) -> int:
    path = Path("sweeps/mine") / folder / "timing.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(condition, process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def tries(folder: str = "sweeps/mine") -> list[tuple[int, int, str]]:
    from optuna import load_study

    from bayesrnn.sweep.storage import open_storage

    study = load_study(study_name="mine", storage=open_storage(f"{folder}/journal.log"))
    return sorted(
        (t.user_attrs["trial"], t.user_attrs["try"], t.state.name) for t in study.get_trials()
    )


def test_a_sweep_and_its_best_trial_again(sweep, capsys):
    out = sweep()
    first, *rest = out.splitlines()
    assert first.startswith(
        "sweep mine: 4 trials of `bayesrnn train`, tpe, pi, lr; folder sweeps/mine, "
    )
    line = r"trial \d  pi 0\.\d+  lr [\d.]+  validation perplexity [\d.]+  complete  best [\d.]+ \(trial \d\)"
    ended = [text for text in rest if re.match(line, text)]
    assert len(ended) == 4
    assert all(text.endswith(" left") for text in ended[:3])
    assert "train it again with:\n  bayesrnn train --preset sweeps/mine/best.toml\n" in out
    page = Path("sweeps/mine/results.md").read_text()
    assert page.count("| complete |") == 4

    found = json.loads(sweep("--json"))
    assert sweep().startswith("sweep mine: all 4 trials have ended already\n")
    values = [trial["value"] for trial in found["trials"]]
    assert values == sorted(values)
    assert found["best"] == found["trials"][0]
    command = shlex.split(found["command"])
    main([*command[1:], "--run", "again", "--no-tensorboard", "--json"])
    again = open_run(Path("again"))
    assert min(e["valid_perplexity"] for e in again.read_metrics("epoch")) == values[0]
    theirs = Path(found["best"]["run"])
    assert (Path("again") / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
    assert again.config.preset == "sweeps/mine/best.toml"

    capsys.readouterr()
    main(["list", "sweeps", "--json"])
    runs = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in runs] == ["finished"] * 4
    assert sorted(run["best"] for run in runs) == values

    assert "6 trials of `bayesrnn train`, 4 of them ended already, " in sweep("--trials", "6")
    assert len(json.loads(sweep("--json"))["trials"]) == 6


def owner(number: int) -> int:
    """The process that has the run folder of a trial; 0 for none."""
    path = Path(f"sweeps/mine/trial-{number:04d}/.bayesrnn-lock")
    found = re.match(r"process (\d+) ", path.read_text()) if path.exists() else None
    return int(found[1]) if found else 0


def test_a_worker_that_is_killed_and_one_that_goes_on(sweep, text_folder):
    """Both are started at once; one of them makes the study, and the other joins."""
    Path("mine.toml").write_text(LONG.replace("epochs = 12", "epochs = 20"))
    workers = [started(text_folder, "--dead-after", "1.5", "--json") for _ in range(2)]
    wait_for(lambda: epochs_of("trial-0000") >= 2 and owner(1), workers[0])
    assert {owner(0), owner(1)} == {worker.pid for worker in workers}
    killed, other = sorted(workers, key=lambda worker: worker.pid != owner(0))
    killed.kill()
    killed.communicate()
    timing = Path("sweeps/mine/trial-0000/timing.jsonl")
    before = timing.read_text().splitlines()
    assert 2 <= len(before) < 20
    out, err = other.communicate(timeout=100)
    assert other.returncode == 0, err
    assert "the worker of trial 0 is dead" in err
    assert [trial["state"] for trial in json.loads(out)["trials"]] == ["complete"] * 2
    assert tries() == [(0, 0, "FAIL"), (0, 1, "COMPLETE"), (1, 0, "COMPLETE")]
    after = timing.read_text().splitlines()
    assert len(after) == 20
    assert after[: len(before) - 1] == before[:-1]  # these were not trained again


def test_it_goes_on_after_ctrl_c(sweep, text_folder):
    Path("mine.toml").write_text(LONG.replace("trials = 2", "trials = 1"))
    process = started(text_folder)
    wait_for(lambda: epochs_of("trial-0000") >= 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    command = f"bayesrnn sweep mine.toml --data {text_folder}"
    assert out.endswith(f"stopped; go on with:\n  {command}\n")
    assert tries() == [(0, 0, "FAIL"), (0, 1, "WAITING")]
    seconds = Path("sweeps/mine/trial-0000/timing.jsonl").read_text()
    (trial,) = json.loads(sweep("--json"))["trials"]
    assert trial["state"] == "complete"
    assert Path("sweeps/mine/trial-0000/timing.jsonl").read_text().startswith(seconds)


def test_in_a_terminal_there_is_a_bar(sweep, text_folder):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bayesrnn", "sweep", "mine.toml", "--trials", "2"]
    process = subprocess.Popen([*command, "--data", str(text_folder)], stdout=theirs)
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
    assert re.search(r"0 of 2 ended  trial 0  epoch 1 of 2  perplexity", text)
    assert re.search(r"trial 1  pi 0\.\d+  lr [\d.]+  validation perplexity", text)


@pytest.fixture
def refused(sweep, capsys, text_folder):
    """One line and exit code 2, soon, and nothing made but what is there already."""

    def run(*options: str) -> str:
        before, began = sorted(Path().rglob("*")), time.monotonic()
        with pytest.raises(SystemExit) as exit_:
            main(["sweep", "mine.toml", "--data", str(text_folder), *options])
        assert exit_.value.code == 2
        assert time.monotonic() - began < 15
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert sorted(Path().rglob("*")) == before
        return captured.err

    return run


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("postgresql://me:secret@localhost:1/x", "postgresql://me:***@localhost:1/x"),
        ("nonsense://x", "nonsense://x is no URL of a database"),
        ("postgresql://localhost:port/x", "cannot use postgresql://...: invalid literal"),
        ("sqlite:///no/such/folder/x.db", "cannot use sqlite:///no/such/folder/x.db: "),
        (
            "sqlite:///mine.toml",
            "cannot use sqlite:///mine.toml: file is not a database",
        ),
        ("no/such/folder/journal.log", "no/such/folder: no such folder"),
        ("mine.toml", "mine.toml is no journal of a sweep; choose another with --storage."),
        ("one-line.txt", "one-line.txt is no journal of a sweep"),
        ("torn.log", "torn.log is damaged: its last line is not whole."),
        ("damaged.log", "damaged.log is damaged, or no journal of a sweep: "),
        ("other.log", "other.log is damaged, or no journal of a sweep: "),
        (".", ". is a folder"),
        ("/dev/null", "/dev/null is no regular file"),
    ],
)
def test_a_storage_that_cannot_be_used(storage, says, refused):
    whole = '{"op_code": 0, "worker_id": "a", "study_name": "b", "directions": [1]}\n'
    Path("one-line.txt").write_text("some words")
    Path("torn.log").write_text(whole + whole[:20])
    Path("damaged.log").write_text(whole + "}{\n" + whole)
    Path("other.log").write_text('{"op_code": 4}\n')
    err = refused("--storage", storage)
    assert says in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--trials -1", "trials = -1 must be 0 or more."),
        ("--trials x", "--trials x must be a whole number; see"),
        ("--dead-after 0", "dead-after = 0.0 must be 0.5 or more."),
        ("--folder mine.toml", "mine.toml is a file; name a folder."),
    ],
)
def test_options_that_cannot_be(options, says, refused):
    assert says in refused(*options.split())


def test_without_optuna_there_is_the_cure(refused, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    assert refused() == "bayesrnn: this needs optuna: pip install 'bayesrnn[sweep]'.\n"


def test_another_space_under_the_same_name(sweep, capsys, text_folder):
    sweep("--trials", "1")
    Path("mine.toml").write_text(SPACE.replace("hidden = 8", "hidden = 9"))
    with pytest.raises(SystemExit):
        sweep()
    assert "begun with another space: settings.hidden = 9, which was 8." in capsys.readouterr().err


def test_help_loads_neither_torch_nor_optuna():
    code = (
        "import sys\nfrom bayesrnn.cli import main\nmain(['--help'])\n"
        "assert not {'torch', 'optuna', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
