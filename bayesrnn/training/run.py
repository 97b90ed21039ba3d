"""A run folder: plain files with everything a command needs to use a trained model.

config.toml              every setting
metrics.jsonl            one line every 100 steps and one per epoch; identical whenever a run is repeated
timing.jsonl             seconds and items of each epoch
weights.safetensors      the weights of the best epoch
checkpoint.safetensors   the whole state of training, to resume from; checkpoint-previous.safetensors: the one
                         before it, in case this one is damaged
tensorboard/             the same metrics for TensorBoard

An experiment may add files, such as a language model's vocabulary.txt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from bayesrnn.files import JsonLines, is_run, write_text
from bayesrnn.methods import Method
from bayesrnn.storage import load_header, load_tensors, save_tensors
from bayesrnn.training.binding import binding, check_binding
from bayesrnn.training.settings import Settings

M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Run:
    """A folder with a config.toml; training adds the other files."""

    folder: Path
    config: Settings
    files: tuple[str, ...] = ()
    """The names of the experiment's own files; known only where the run is trained."""
    data: str | None = None
    """The digest of the training data; known only where the run is trained."""

    @classmethod
    def create(cls, folder: Path, config: Settings, files: Mapping[str, str] | None = None) -> Run:
        """Start a run in a new or empty folder."""
        run = cls(folder, config, tuple(files or ()))
        run.write(files or {})
        return run

    def write(self, files: Mapping[str, str]) -> None:
        """Start the run in its folder, new or empty. The config comes last: it marks the folder as a run."""
        self.make_folder()
        try:
            for name, text in files.items():
                write_text(self.folder / name, text)
            self.write_config()
        except OSError as error:
            raise ValueError(f"cannot write to {self.folder}: {error.strerror}.") from None

    def make_folder(self) -> None:
        """Make the folder; ValueError if it has anything in it but hidden files and what an interrupted
        `write` left."""
        folder = self.folder
        if folder.exists() and not (folder.is_dir() and self._is_empty()):
            if is_run(folder):
                cure = "continue it with --resume, or choose another with --run"
                raise ValueError(f"{folder} exists already; {cure}.")
            raise ValueError(f"{folder} exists and is not a run; choose another folder with --run.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot make {folder}: {error.strerror}.") from None

    def _is_empty(self) -> bool:
        names = (path.name for path in self.folder.iterdir())
        return all(name in self.files or name.startswith(".") for name in names)

    @property
    def name(self) -> str:
        """The run's name in tables and figures: the last part of its path."""
        name = self.folder.name
        return name if name not in ("", "..") else self.folder.resolve().name

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def previous_checkpoint(self) -> Path:
        return self.folder / "checkpoint-previous.safetensors"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def metrics(self) -> JsonLines:
        return JsonLines(self.folder / "metrics.jsonl")

    @property
    def timing(self) -> JsonLines:
        # No checkpoint can tell what they were, since no two runs have the same: so the lines do themselves.
        config = self.config
        return JsonLines(
            self.folder / "timing.jsonl", seal=f"{config.TASK} {config.method} {config.seed}"
        )

    def write_config(self) -> None:
        write_text(self.folder / "config.toml", self.config.to_toml())

    def save_weights(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        save_tensors(self.weights, tensors, {**header, "run": self._binding()})

    def load_weights(self, method: M) -> M:
        """Load the best weights so far into the run's method; returns the method."""
        if not self.weights.exists():
            raise ValueError(f"{self.folder} has no weights yet: its first epoch is not finished.")
        state, header = load_tensors(self.weights)
        check_binding(header, self.weights, self.config)
        try:
            method.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{self.weights} does not fit config.toml: {error}") from None
        return method

    def save_checkpoint(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Write a checkpoint, and keep the one before it."""
        whole = {**header, "run": self._binding()}
        save_tensors(self.checkpoint, tensors, whole, keep=self.previous_checkpoint)

    def _binding(self) -> dict[str, Any]:
        return binding(self.folder, self.config, self.files, self.data)

    def read_metrics(self, kind: str) -> list[dict[str, Any]]:
        """The metrics lines of one kind: "step" or "epoch".

        ValueError if they are not what the last checkpoint, where there is one, says they were.
        """
        try:
            header = load_header(self.checkpoint)
        except (ValueError, OSError):
            header = {}
        size, sha256 = header.get("metrics_size"), header.get("metrics_sha256")
        if isinstance(size, int) and isinstance(sha256, str):
            self.metrics.check(size, sha256)
        lines = [line for line in self.metrics.read() if line.get("kind") == kind]
        steps = [line.get("step", 0) for line in lines]
        if steps != sorted(set(steps)):
            raise ValueError(
                f"{self.metrics.path} is damaged: its lines are not in order. Restore it."
            )
        return lines

    def read_timing(self) -> list[dict[str, Any]]:
        """The seconds of each epoch; none, if they are not known of all of them."""
        lines, epochs = self.timing.read(), self.read_metrics("epoch")
        whole = [line.get("epoch") for line in lines] == [line["epoch"] for line in epochs]
        return lines if whole else []


def labels(runs: Sequence[Run]) -> list[str]:
    """Unique labels for runs: the name, or the whole path where names are equal."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else str(run.folder)
        for run, name in zip(runs, names, strict=True)
    ]
