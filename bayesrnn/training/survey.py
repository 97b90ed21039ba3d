"""The runs under a folder and how far each has come, from the headers of their files alone. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bayesrnn.files import LOCK, JsonLines
from bayesrnn.training.binding import check_settings
from bayesrnn.training.experiment import experiment, read_settings
from bayesrnn.training.settings import FILES, Settings

State = Literal["training", "finished", "stopped", "not begun", "damaged"]

LARGEST_HEADER = 100_000_000
"""Bytes that the safetensors format allows for a header."""


@dataclass(frozen=True)
class Surveyed:
    """What is known of a run without loading it."""

    folder: Path
    state: State
    changed: float
    """When a file of the run was last written, in seconds since 1970."""
    task: str | None = None
    method: str | None = None
    epochs: int = 0
    """Epochs done."""
    planned: int | None = None
    best: float | None = None
    """The best value of the experiment's goal; None before the first epoch, and without a checkpoint."""
    best_text: str | None = None
    """The same with its name, as text."""
    problem: str | None = None
    """What is damaged, in one line."""


def survey(folder: Path) -> list[Surveyed]:
    """The runs in a folder and in the folders inside it, by path; links to folders are not followed."""
    if not folder.is_dir():
        what = "this is a file; name a folder" if folder.exists() else "no such folder"
        raise ValueError(f"{folder}: {what}.")
    return [surveyed(path) for path in sorted(_runs_in(folder))]


def surveyed(folder: Path) -> Surveyed:
    """How far the run in a folder has come; a damaged run is a result too."""
    run = Surveyed(folder, "damaged", _last_change(folder))
    try:
        config = read_settings(folder)
        run = replace(run, task=config.TASK, method=config.method, planned=config.epochs)
        at = _position(folder, config)
    except (ValueError, OSError) as error:
        return replace(run, problem=str(error))
    run = replace(run, state=_state(folder, config, at), epochs=at.epoch)
    if at.best is None:
        return run
    return replace(run, best=at.best, best_text=experiment(config.TASK).goal_text(at.best))


def _runs_in(folder: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(folder):
        if _is_run(Path(place)):
            yield Path(place)
            folders.clear()  # a run has no runs inside it
        folders[:] = [name for name in folders if not name.startswith(".")]


def _is_run(folder: Path) -> bool:
    """Whether a folder has a run, or what is left of one; other programs have a config.toml too."""
    names = _files_of(folder)
    if len(names) == 1 and names[0] == "config.toml":
        with suppress(OSError), open(folder / "config.toml", "rb") as file:
            return file.read(9) == b"format = "
    return len(names) > 1


def _files_of(folder: Path) -> list[str]:
    return [name for name in FILES if (folder / name).is_file()]


def _last_change(folder: Path) -> float:
    changes = [folder.stat().st_mtime]
    for name in _files_of(folder):
        with suppress(OSError):
            changes.append((folder / name).stat().st_mtime)
    return max(changes[1:] or changes)


@dataclass(frozen=True)
class _Position:
    """How far training has come."""

    epoch: int
    steps: int = 0
    best_epoch: int = 0
    best: float | None = None


def _position(folder: Path, config: Settings) -> _Position:
    """How far the last checkpoint is; without one, how many epochs have metrics."""
    weights, checkpoint = folder / "weights.safetensors", folder / "checkpoint.safetensors"
    metrics = JsonLines(folder / "metrics.jsonl")
    epochs = [line["epoch"] for line in metrics.read() if line.get("kind") == "epoch"]
    if weights.exists():
        check_settings(_header(weights), weights, config)
    elif epochs:
        raise ValueError(f"{weights} is missing, though an epoch is finished.")
    if not checkpoint.exists():
        done = epochs[-1] if epochs else 0
        return _Position(done, best_epoch=done)
    header = _header(checkpoint)
    check_settings(header, checkpoint, config)
    metrics.check(header.get("metrics_size", 0), None)
    at = header.get("position")
    names = ("epoch", "cut", "best", "best_epoch")
    if not isinstance(at, dict) or not all(isinstance(at.get(name), int | float) for name in names):
        raise ValueError(f"{checkpoint} is damaged: it does not say how far it is.")
    best = at["best"] if at["best_epoch"] else None
    return _Position(at["epoch"], at["cut"], at["best_epoch"], best)


def _state(folder: Path, config: Settings, at: _Position) -> State:
    if _is_locked(folder):
        return "training"
    if not at.epoch and not at.steps:
        return "not begun"
    stalled = config.patience > 0 and at.epoch > 0 and at.epoch - at.best_epoch >= config.patience
    return "finished" if at.epoch >= config.epochs or stalled else "stopped"


def _header(path: Path) -> dict[str, Any]:
    """The header of a file of tensors, which must be as long as that says; the tensors are not read."""
    damaged = ValueError(f"{path} is damaged or was not written by bayesrnn.")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise damaged
        text = file.read(size)
    try:
        entries = json.loads(text)
        header = json.loads(entries.pop("__metadata__")["bayesrnn"])["header"]
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        whole = path.stat().st_size == 8 + size + end
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise damaged from None
    if not whole or not isinstance(header, dict):
        raise damaged
    return header


def _is_locked(folder: Path) -> bool:
    """Whether a process trains the run at this moment."""
    try:
        import fcntl

        handle = os.open(folder / LOCK, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        if not os.fstat(handle).st_size:
            return False  # who trains writes its name; so a run that nobody trains is not locked to find out
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
