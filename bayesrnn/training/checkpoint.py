"""The checkpoint file that a run is resumed from: tensors by name, and the position in training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from bayesrnn.storage import load_tensors
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


def read_checkpoint(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and header of a run's checkpoint; temporary files of a killed process are removed."""
    for half_written in run.folder.glob(".*"):
        half_written.unlink()
    if not run.checkpoint.exists():
        raise ValueError(
            f"{run.folder} has no checkpoint.safetensors to resume from; start a new run."
        )
    tensors, header = load_tensors(run.checkpoint)
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{run.checkpoint} was written by another version of bayesrnn; resume with that version."
        )
    return tensors, header


def part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, with the prefix removed."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
