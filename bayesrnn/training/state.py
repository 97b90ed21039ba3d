"""All that training goes on from: written as a checkpoint, and restored from one bit for bit."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from bayesrnn import ranks
from bayesrnn.methods import Method
from bayesrnn.storage import digest, load_tensors
from bayesrnn.training.averaging import WeightAverage
from bayesrnn.training.binding import check_binding
from bayesrnn.training.checkpoint import FORMAT, Position, part, read_checkpoint
from bayesrnn.training.conditions import changed, conditions
from bayesrnn.training.experiment import Task
from bayesrnn.training.randomness import Randomness
from bayesrnn.training.run import Run
from bayesrnn.training.update import Update


class TrainingState:
    """The parts of training that have a state, the position they have reached, and the best weights."""

    def __init__(
        self,
        run: Run,
        task: Task,
        method: Method,
        update: Update,
        average: WeightAverage | None,
        random: Randomness,
    ) -> None:
        self.run = run
        self.task = task
        self.method = method
        self.update = update
        self.average = average
        self.random = random
        self.at = Position(task.goal.worst)
        self.best: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        """The weights of the best epoch and their header, for the first rank to write."""

    def conditions(self) -> dict[str, Any]:
        """What else the results depend on, to the last bit: torch, threads, device."""
        return conditions(self.update.device, self.run.config.precision)

    def save_best(self) -> None:
        """Keep the weights that predict now as the best, and write them."""
        if not ranks.is_first():
            return
        state = self.method.state_dict()
        tensors = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.best = tensors, {**self.method.header(), "epoch": self.at.epoch}
        self.run.save_weights(*self.best)

    def save(self) -> None:
        """Write a checkpoint; if that fails, the previous one remains.

        `Trainer.save_checkpoint` first adds up the losses of all steps, as the position must have them.
        """
        tensors: dict[str, Tensor] = {
            **self.random.states(),
            **{f"learner.{name}": tensor for name, tensor in self.method.state_dict().items()},
        }
        if self.average is not None:
            state = self.average.state_dict()
            tensors |= {f"average.{name}": tensor for name, tensor in state.items()}
        carried = self.task.carried().items()
        tensors |= {f"state.{name}": ranks.gather(tensor, dim=1) for name, tensor in carried}
        if not ranks.is_first():
            return
        state = self.update.state_dict()
        tensors |= {f"optimizer.{name}": tensor for name, tensor in state.items()}
        best_header = None
        if self.best is not None:  # so that damage to the weights' own file can be mended
            best, best_header = self.best
            tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        metrics_size, metrics_sha256 = self.run.metrics.sync()
        header = {
            "format": FORMAT,
            "position": self.at.to_header(),
            "best": best_header,
            "metrics_size": metrics_size,
            "metrics_sha256": metrics_sha256,
            "train_size": self.task.size,
            "machine": self.conditions(),
        }
        self.run.save_checkpoint(tensors, header)

    def resume(self) -> list[str]:
        """Restore the run's last checkpoint; returns what the user should know of it, one line each.

        A run that was stopped before its first checkpoint begins anew.
        """
        found = ranks.agree(lambda: read_checkpoint(self.run) if ranks.is_first() else None)
        tensors, said = ranks.broadcast(
            found.tensors if found else {},
            json.dumps(found and {"header": found.header, "notes": found.notes}),
        )
        read = json.loads(said)
        if read is None:
            if self.run.config.start:  # whose weights only the first checkpoint would have
                raise ValueError(
                    f"{self.run.folder} was stopped before its first checkpoint; remove it, and begin "
                    f"again with --from {self.run.config.start}."
                )
            return []
        header, notes = read["header"], list(read["notes"])
        size = header.get("train_size", header.get("train_tokens"))
        if size != self.task.size:
            raise ValueError(
                f"the training data have {self.task.size} {self.task.item}s, and had {size} when the run "
                "began; give the same data, or start a new run."
            )
        self.method.load_state_dict(part("learner.", tensors))
        self.update.load_state_dict(part("optimizer.", tensors))
        if self.average is not None:
            self.average.load_state_dict(part("average.", tensors))
        self.at = Position.from_header(header["position"])
        before = header.get("machine")
        device = before.get("device", "cpu") if isinstance(before, dict) else "cpu"
        self.random.restore(
            tensors, (self.at.epoch, self.at.cut), same_device=device == self.update.device.type
        )
        if self.at.cut:
            self.task.begin_epoch(self.at.epoch)
        self.task.carry(part("state.", tensors))
        if isinstance(header.get("best"), dict):
            self.best = part("best.", tensors), header["best"]
        notes += changed(before, self.conditions())
        if ranks.is_first():
            notes += self._restore_weights()
            self.run.metrics.truncate(header["metrics_size"])
            notes += self._restore_timing()
        _, at = ranks.broadcast({}, json.dumps(self.at.to_header()))  # the best may be lost
        self.at = Position.from_header(json.loads(at))
        return notes

    def _restore_weights(self) -> list[str]:
        """See that the best weights so far are in their file; if they are damaged, write them anew."""
        at, run = self.at, self.run
        if not at.best_epoch:
            return []
        problem = None
        try:
            tensors, header = load_tensors(run.weights)
            check_binding(header, run.weights, run.config)
            if self.best is None or digest(tensors, {}) == digest(self.best[0], {}):
                return []
        except ValueError as error:
            problem = str(error)
        if self.best is None:  # a checkpoint of an earlier version
            at.best, at.best_epoch = self.task.goal.worst, 0
            return [
                f"{problem} The best weights so far are lost; the next epoch's take their place."
            ]
        run.save_weights(*self.best)
        return [f"{problem} The weights were restored from the checkpoint."] if problem else []

    def _restore_timing(self) -> list[str]:
        """Remove what was written after the checkpoint; of a damaged file, keep the lines that are whole."""
        timing = self.run.timing
        lines = timing.read(skip_damaged=True)
        notes = []
        try:
            timing.read()
        except ValueError as error:
            notes.append(f"{error} The other lines were kept.")
        timing.rewrite([line for line in lines if line.get("epoch", 0) <= self.at.epoch])
        return notes
