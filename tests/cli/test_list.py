"""`bayesrnn list`: every run under a folder, whatever its state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from bayesrnn.cli import main
from bayesrnn.files import LOCK, locked


@pytest.fixture
def listed(capsys):
    """What the command prints as JSON: the rows by the last part of their path."""

    def run(folder) -> dict[str, dict]:
        capsys.readouterr()
        main(["list", str(folder), "--json"])
        rows = json.loads(capsys.readouterr().out)
        assert [row["run"] for row in rows] == sorted(row["run"] for row in rows)
        return {row["run"].removeprefix(f"{folder}/"): row for row in rows}

    return run


@pytest.fixture
def runs(trained, tmp_path):
    """A folder in which finished runs can be copied and damaged."""
    folder = tmp_path / "runs"

    def copy(name: str):
        return shutil.copytree(trained("lstm"), folder / name)

    copy("whole")
    return folder, copy


def test_runs_in_every_state(runs, listed, text_folder, capsys):
    folder, copy = runs
    (copy("deep/er/begun") / "checkpoint.safetensors").unlink()
    for name in ("metrics.jsonl", "weights.safetensors", "checkpoint-previous.safetensors"):
        (folder / "deep/er/begun" / name).unlink()
    config = copy("stopped") / "config.toml"
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 5"))
    (folder / "link").symlink_to(folder / "whole")
    (folder / "other").mkdir()
    (folder / "other" / "config.toml").write_text("[package]\n")  # of another program
    rows = listed(folder)
    assert list(rows) == ["deep/er/begun", "stopped", "whole"]
    assert [row["state"] for row in rows.values()] == ["not begun", "stopped", "finished"]
    assert [row["epochs"] for row in rows.values()] == [0, 3, 3]
    assert [row["planned_epochs"] for row in rows.values()] == [3, 5, 3]
    whole = rows["whole"]
    assert (whole["task"], whole["method"], whole["problem"]) == ("language", "lstm", None)
    epochs = [
        json.loads(line) for line in (folder / "whole/metrics.jsonl").read_text().splitlines()
    ]
    best = min(line["valid_perplexity"] for line in epochs if line["kind"] == "epoch")
    assert whole["best"] == best
    assert whole["best_text"] == f"validation perplexity {best:.2f}"
    assert rows["deep/er/begun"]["best"] is None

    capsys.readouterr()
    main(["list", str(folder)])
    heading, *lines = capsys.readouterr().out.splitlines()
    names = ["run", "task", "method", "epochs", "best", "state", "last", "change"]
    assert heading.split() == names
    assert lines[2].split()[:6] == [str(folder / "whole"), "language", "lstm", "3", "of", "3"]
    main(["list", str(folder / "whole")])  # a run itself
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_run_that_is_trained_now(runs, listed):
    folder, copy = runs
    with locked(folder / "whole"):
        assert listed(folder)["whole"]["state"] == "training"
    assert listed(folder)["whole"]["state"] == "finished"
    (copy("killed") / LOCK).write_text("process 1 on a machine that was switched off")
    assert listed(folder)["killed"]["state"] == "finished"


def test_a_run_out_of_patience_is_finished(text_folder, tmp_path, listed):
    options = (
        f"--data {text_folder} --run {tmp_path}/run --hidden 8 --batch-size 8 --unroll 10 --json"
    )
    main(f"train --method lstm --lr 1e-9 --epochs 50 --patience 1 {options}".split())
    (row,) = listed(tmp_path).values()
    assert row["state"] == "finished"
    assert row["epochs"] < row["planned_epochs"] == 50


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b""),
        ("config.toml", b"format = 1\nepochs = [\n"),
        ("config.toml", b'format = 1\ntask = "poems"\n'),
        ("config.toml", None),
        ("config.toml", "rho_lr = 1.0\n"),  # a line that is lost
        ("metrics.jsonl", b"{}\n[]\n"),
        ("metrics.jsonl", b""),
        ("checkpoint.safetensors", b""),
        ("checkpoint.safetensors", b"\xff" * 100),
        ("checkpoint.safetensors", b"\x02" + bytes(7) + b"{}"),
        ("weights.safetensors", b"text"),
        ("weights.safetensors", None),
    ],
)
def test_a_damaged_run_is_a_row_like_any_other(runs, listed, capsys, name, content):
    folder, copy = runs
    path = copy("broken") / name
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(path.read_text().replace(content, ""))
    else:
        path.write_bytes(content)
    rows = listed(folder)
    assert [row["state"] for row in rows.values()] == ["damaged", "finished"]
    assert "broken" in rows["broken"]["problem"]
    main(["list", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1] == f"damaged: {rows['broken']['problem']}"


def test_a_file_cut_short_is_noticed_without_reading_it(runs, listed):
    folder, _ = runs
    path = folder / "whole" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert listed(folder)["whole"]["state"] == "damaged"


def test_a_folder_without_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["list"])
    assert capsys.readouterr().out == "no runs yet: `bayesrnn train` makes runs/.\n"
    main(["list", "--json"])
    assert capsys.readouterr().out == "[]\n"
    for arguments, said in [
        (["none"], "bayesrnn: none: no such folder.\n"),
        (["file"], "bayesrnn: file: this is a file; name a folder.\n"),
    ]:
        (tmp_path / "file").write_text("")
        with pytest.raises(SystemExit) as exit_:
            main(["list", *arguments])
        assert exit_.value.code == 2
        assert capsys.readouterr() == ("", said)
    (tmp_path / "runs").mkdir()
    main(["list"])
    assert capsys.readouterr().out == "runs has no runs.\n"
    main(["list", "--json"])
    assert capsys.readouterr().out == "[]\n"


def test_it_does_not_wait_for_torch(runs):
    code = (
        "import sys\nfrom bayesrnn.cli import main\nmain(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, "list", str(runs[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
