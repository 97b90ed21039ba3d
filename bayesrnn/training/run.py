"""A run folder: plain files that hold all a command needs to use a trained model.

config.toml              every setting
vocabulary.txt           one word a line, in the order of their numbers
metrics.jsonl            one line every so many steps and one an epoch; the same on every repetition
timing.jsonl             seconds and words of each epoch
weights.safetensors      the weights with the best validation perplexity
checkpoint.safetensors   the whole state of training, to resume from
tensorboard/             the metrics once more, for TensorBoard
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrnn.config import Config, MnistConfig, Settings
from bayesrnn.data.corpus import Vocabulary
from bayesrnn.data.digits import CLASSES
from bayesrnn.methods import Learner, make_classifier, make_learner
from bayesrnn.storage import load_tensors, save_tensors, write_atomically


@dataclass(frozen=True)
class RunFolder(ABC):
    """A folder with a config; the other files come as training goes on."""

    folder: Path
    config: Settings

    @abstractmethod
    def new_learner(self) -> Learner:
        """The run's model and method, at their start."""

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
        _write_text(self.folder / "config.toml", self.config.to_toml())

    def load_learner(self) -> Learner:
        """The run's model and method, with the best weights so far."""
        if not self.weights.exists():
            raise ValueError(f"{self.folder} has no weights yet: its first epoch is not over.")
        learner = self.new_learner()
        state, _ = load_tensors(self.weights)
        try:
            learner.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{self.weights} does not fit config.toml: {error}") from None
        return learner

    def save_weights(self, learner: Learner) -> None:
        save_tensors(self.weights, learner.state_dict(), learner.header())

    def append_metrics(self, values: dict[str, Any]) -> None:
        _append(self.metrics, values)

    def append_timing(self, values: dict[str, Any]) -> None:
        _append(self.timing, values)

    def read_metrics(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind: "step" or "epoch"."""
        return [line for line in _read_lines(self.metrics) if line["kind"] == kind]

    def read_timing(self) -> list[dict[str, Any]]:
        return _read_lines(self.timing)

    def sync_metrics(self) -> int:
        """Have the metrics on disk before a checkpoint that counts on them; returns their size."""
        with self.metrics.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def truncate_metrics(self, size: int) -> None:
        """Forget what was measured after a checkpoint; it will be measured again."""
        if not self.metrics.exists():
            self.metrics.touch()
        if self.metrics.stat().st_size < size:
            raise ValueError(
                f"{self.metrics} is shorter than at the last checkpoint; restore it, or start anew."
            )
        os.truncate(self.metrics, size)


@dataclass(frozen=True)
class Run(RunFolder):
    """A language model's run: beside the config it has a vocabulary."""

    config: Config
    vocabulary: Vocabulary

    @classmethod
    def create(cls, folder: Path, config: Config, vocabulary: Vocabulary) -> Run:
        """Begin a run in a folder that is new or empty."""
        run = cls(folder, config, vocabulary)
        _create(run, {"vocabulary.txt": vocabulary.text()})
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that exists."""
        run = open_any(folder)
        if not isinstance(run, Run):
            raise ValueError(
                f"{folder} is a run of `bayesrnn {run.config.TASK}`; this needs one of a language model."
            )
        return run

    def new_learner(self) -> Learner:
        return make_learner(self.config, len(self.vocabulary))


@dataclass(frozen=True)
class DigitsRun(RunFolder):
    """A run of a classifier of digits."""

    config: MnistConfig

    @classmethod
    def create(cls, folder: Path, config: MnistConfig) -> DigitsRun:
        run = cls(folder, config)
        _create(run, {})
        return run

    @classmethod
    def open(cls, folder: Path) -> DigitsRun:
        """A run that exists."""
        run = open_any(folder)
        if not isinstance(run, DigitsRun):
            raise ValueError(
                f"{folder} is a run of a language model; this needs one of `bayesrnn mnist`."
            )
        return run

    def new_learner(self) -> Learner:
        return make_classifier(self.config, self.config.pixels, CLASSES)


def open_any(folder: Path) -> Run | DigitsRun:
    """A run of whichever kind it is."""
    config = read_config(folder)
    if isinstance(config, MnistConfig):
        return DigitsRun(folder, config)
    assert isinstance(config, Config)
    return Run(folder, config, Vocabulary.read(folder / "vocabulary.txt"))


def same_kind(folders: Iterable[Path]) -> tuple[list[Run], list[DigitsRun]]:
    """The runs in these folders, which must all be of language models or all of digits; one list is empty."""
    runs = [open_any(folder) for folder in folders]
    languages = [run for run in runs if isinstance(run, Run)]
    digits = [run for run in runs if isinstance(run, DigitsRun)]
    if languages and digits:
        raise ValueError(
            f"{languages[0].folder} is of a language model, {digits[0].folder} of digits; name runs of one "
            "kind."
        )
    return languages, digits


def read_config(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    if not (folder / "config.toml").is_file():
        what = "holds no run (it has no config.toml)" if folder.is_dir() else "no such run folder"
        raise ValueError(f"{folder}: {what}.")
    return Settings.from_toml(folder / "config.toml")


def _create(run: RunFolder, files: dict[str, str]) -> None:
    """Write a run's first files; the config last, which makes the folder a run."""
    folder = run.folder
    if folder.exists() and not (folder.is_dir() and _holds_nothing(folder)):
        raise ValueError(
            f"{folder} exists already; continue it with --resume, or name another with --run."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            _write_text(folder / name, text)
        run.write_config()
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}.") from None


def _append(path: Path, values: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a crash may have cut the last line short
    return [json.loads(line) for line in whole.splitlines()]


def _holds_nothing(folder: Path) -> bool:
    """Whether a folder is empty but for what a `create` that was interrupted has left."""
    return all(p.name == "vocabulary.txt" or p.name.startswith(".") for p in folder.iterdir())


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
