"""The checkpoint file that a run is resumed from: tensors by name, and the position in training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesrnn.storage import load_tensors
from bayesrnn.training.binding import check_binding
from bayesrnn.training.run import Run

FORMAT = "bayesrnn-checkpoint-1"


@dataclass
class Position:
    """How far training has come, and the running sums of the epoch: a checkpoint's header.

    The field names are keys of the file format.
    """

    best: float
    best_epoch: int = 0
    epoch: int = 0
    cut: int = 0  # minibatches done in this epoch
    nats: float = 0.0  # sum of the losses of this epoch
    steps: float = 0  # sum of the minibatches' units in this epoch
    recent_nats: float = 0.0  # the same two sums since the last line of metrics
    recent_steps: float = 0
    sums: dict[str, float] = field(default_factory=lambda: {"kl_theta": 0.0})
    """Sums of the metrics that the method reported in this epoch, in nats."""

    def begin_epoch(self) -> None:
        self.cut, self.nats, self.steps = 0, 0.0, 0
        self.recent_nats, self.recent_steps = 0.0, 0
        self.sums = dict.fromkeys(self.sums, 0.0)

    def to_header(self) -> dict[str, Any]:
        values = asdict(self)
        sums = values.pop("sums")
        return {**values, **sums}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Position:
        own = {f.name for f in fields(cls)}
        sums = {name: value for name, value in header.items() if name not in own}
        return cls(**{k: v for k, v in header.items() if k in own}, sums=sums)


@dataclass(frozen=True)
class Checkpoint:
    """What a run is resumed from."""

    tensors: dict[str, Tensor]
    header: dict[str, Any]
    notes: tuple[str, ...] = ()
    """What the user should know, one line each: that it is the one before a damaged one."""


def read_checkpoint(run: Run) -> Checkpoint | None:
    """The last checkpoint of a run that is intact and its own; None if the run was stopped before it had any.

    Raise ValueError if there are some, and neither the last nor the one before it can be used.
    """
    problems: list[str] = []
    for path in (run.checkpoint, run.previous_checkpoint):
        try:
            tensors, header = _read(run, path)
        except ValueError as error:
            problems.append(str(error))
        except FileNotFoundError:
            if path == run.checkpoint and run.previous_checkpoint.exists():
                problems.append(f"{path} is missing.")
        else:
            notes = (f"{problem} Resuming from the checkpoint before it." for problem in problems)
            return Checkpoint(tensors, header, tuple(notes))
    if problems:
        raise ValueError(problems[0])
    if run.weights.exists() or run.metrics.read(skip_damaged=True):
        raise ValueError(
            f"{run.folder} has no checkpoint.safetensors to resume from; start a new run."
        )
    return None


def _read(run: Run, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(path)
    tensors, header = load_tensors(path)
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} was written by another version of bayesrnn; resume with that version."
        )
    check_binding(header, path, run.config, run.data)
    run.metrics.check(header["metrics_size"], header.get("metrics_sha256"))
    return tensors, header


def part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, with the prefix removed."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
