"""A run folder: plain files with everything a command needs to use a trained model.

config.toml              every setting
metrics.jsonl            one line every 100 steps and one per epoch; identical whenever a run is repeated
timing.jsonl             seconds and items of each epoch
weights.safetensors      the weights of the best epoch
checkpoint.safetensors   the whole state of training, to resume from
tensorboard/             the same metrics for TensorBoard

An experiment may add files, such as a language model's vocabulary.txt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bayesrnn.files import write_text
from bayesrnn.methods import Method
from bayesrnn.storage import load_tensors, save_tensors
from bayesrnn.training.settings import Settings

M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Run:
    """A folder with a config.toml; training adds the other files."""

    folder: Path
    config: Settings

    @classmethod
    def create(cls, folder: Path, config: Settings, files: Mapping[str, str] | None = None) -> Run:
        """Start a run in a new or empty folder. The config is written last: it marks the folder as a run."""
        run, files = cls(folder, config), files or {}
        if folder.exists() and not (folder.is_dir() and _is_empty(folder, files)):
            raise ValueError(
                f"{folder} exists already; continue it with --resume, or choose another with --run."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                write_text(folder / name, text)
            run.write_config()
        except OSError as error:
            raise ValueError(f"cannot write to {folder}: {error.strerror}.") from None
        return run

    @property
    def name(self) -> str:
        """The run's name in tables and figures: the last part of its path."""
        name = self.folder.name
        return name if name not in ("", "..") else self.folder.resolve().name

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        return self.folder / "timing.jsonl"

    def write_config(self) -> None:
        write_text(self.folder / "config.toml", self.config.to_toml())

    def load_weights(self, method: M) -> M:
        """Load the best weights so far into the run's method; returns the method."""
        if not self.weights.exists():
            raise ValueError(f"{self.folder} has no weights yet: its first epoch is not finished.")
        state, _ = load_tensors(self.weights)
        try:
            method.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{self.weights} does not fit config.toml: {error}") from None
        return method

    def save_weights(self, method: Method) -> None:
        save_tensors(self.weights, method.state_dict(), method.header())

    def append_metrics(self, values: dict[str, Any]) -> None:
        _append(self.metrics, values)

    def append_timing(self, values: dict[str, Any]) -> None:
        _append(self.timing, values)

    def read_metrics(self, kind: str) -> list[dict[str, Any]]:
        """The metrics lines of one kind: "step" or "epoch"."""
        return [line for line in _read_lines(self.metrics) if line["kind"] == kind]

    def read_timing(self) -> list[dict[str, Any]]:
        return _read_lines(self.timing)

    def sync_metrics(self) -> int:
        """Flush the metrics to disk before a checkpoint that refers to them; returns their size."""
        with self.metrics.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def truncate_metrics(self, size: int) -> None:
        """Remove the lines after a checkpoint; resumed training writes them again."""
        if not self.metrics.exists():
            self.metrics.touch()
        if self.metrics.stat().st_size < size:
            raise ValueError(
                f"{self.metrics} is shorter than at the last checkpoint; restore it, or start a new run."
            )
        os.truncate(self.metrics, size)


def labels(runs: Sequence[Run]) -> list[str]:
    """Unique labels for runs: the name, or the whole path where names are equal."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else str(run.folder)
        for run, name in zip(runs, names, strict=True)
    ]


def _append(path: Path, values: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a crash may have left the last line incomplete
    return [json.loads(line) for line in whole.splitlines()]


def _is_empty(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether a folder is empty, apart from the files of an interrupted `create`."""
    return all(p.name in files or p.name.startswith(".") for p in folder.iterdir())
