"""The training loop. A stopped run resumes from its checkpoint bit for bit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrnn.gradients import total_norm
from bayesrnn.kernels import one_pass
from bayesrnn.methods import Method
from bayesrnn.storage import digest, load_tensors
from bayesrnn.training import Diverged
from bayesrnn.training.averaging import STEPS_BETWEEN_UPDATES, WeightAverage
from bayesrnn.training.binding import check_binding
from bayesrnn.training.checkpoint import FORMAT, Position, part, read_checkpoint
from bayesrnn.training.experiment import Minibatch, Task
from bayesrnn.training.run import Run

STEPS_BETWEEN_METRICS = 100

LARGEST_RHO_STEP = 0.1
"""Upper limit on a step of rho, and so of log sigma, where rho has a larger learning rate."""


@dataclass(frozen=True)
class Progress:
    """The state of training after a step."""

    epoch: int
    minibatch: int
    metrics: dict[str, Any]
    """Training metrics since the last line of metrics."""
    kl_per_item: float | None
    measured: tuple[dict[str, Any], ...] = ()
    """The lines that this step added to metrics.jsonl."""


class Trainer:
    """Trains a run: iterate over `run()`.

    Set `stop` to anything but 0 to write a checkpoint and end after the current step.
    """

    def __init__(
        self, run: Run, task: Task, method: Method, *, checkpoint_minutes: float = 10.0
    ) -> None:
        config = run.config
        self.run_folder = run
        self.config = config
        self.task = task
        self.method = method
        self.parameters = list(method.parameters())
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._rho = rho = method.rho()
        others = [parameter for parameter in self.parameters if parameter is not rho]
        groups = [{"params": others, "scale": 1.0}]
        if rho is not None:
            groups.append({"params": [rho], "scale": config.rho_lr})
        # Fused: one pass over each parameter instead of one per operation.
        self.optimizer = kinds[config.optimizer](groups, lr=config.lr, fused=True)
        self.average = WeightAverage(self.parameters, config.average) if config.average else None
        self.noise = torch.Generator().manual_seed(config.seed + 1)
        self.checkpoint_seconds = 60 * checkpoint_minutes
        self.stop: int = 0
        self._at = Position(task.goal.worst)
        self._running = False
        self._best: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._measured: list[dict[str, Any]] = []
        self._kl_per_item: float | None = None
        self._dropout_rng = torch.Generator().manual_seed(config.seed + 2).get_state()

    @property
    def finished(self) -> bool:
        return self._at.epoch >= self.config.epochs or self.stalled

    @property
    def stalled(self) -> bool:
        """Whether there was no better epoch for as many as the run's patience."""
        at, patience = self._at, self.config.patience
        return patience > 0 and at.epoch > 0 and at.epoch - at.best_epoch >= patience

    @property
    def compiles(self) -> bool:
        """Whether the first step will compile the passes over the weights, which takes a while."""
        return self._rho is not None and one_pass.enabled and self._rho.numel() >= one_pass.LONG

    @property
    def position(self) -> tuple[int, int]:
        """Epochs done, and minibatches done in the current one."""
        return self._at.epoch, self._at.cut

    @property
    def best(self) -> tuple[float, int]:
        """The best value of the goal and its epoch, counted from 1."""
        return self._at.best, self._at.best_epoch

    def run(self) -> Iterator[Progress]:
        """Train, yielding after each step, until done, stopped or out of patience."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._dropout_rng)
        self._running = True
        try:
            new_run = self._at == Position(self.task.goal.worst)
            if new_run:  # write a checkpoint at once, so that it can be resumed whatever happens
                self.run_folder.metrics.truncate(0)
                self.save_checkpoint()
            yield from self._steps()
        except OSError as error:
            raise OSError(
                f"cannot write to {self.run_folder.folder}: {error}. What was written before is intact; make "
                "room and continue with --resume."
            ) from None
        finally:
            self._running = False
            self._dropout_rng = torch.get_rng_state()
            torch.set_rng_state(outside)

    def validate(self) -> float:
        """The goal now, at the weights that predict; training goes on as if nobody had asked."""
        model, random = self.method.model, torch.get_rng_state()
        training = model.training
        averaged = self.average is not None and self.average.updates > 0
        try:
            with self._averaged() if averaged else nullcontext():
                _, valid = self.task.validate(self.method)
        finally:
            model.train(training)
            torch.set_rng_state(random)
        return valid[self.task.goal.metric]

    def _steps(self) -> Iterator[Progress]:
        last_checkpoint = time.monotonic()
        timed_items, timed_seconds = 0, 0.0
        while not self.finished:
            clock = time.monotonic()
            done = self._step()
            timed_seconds += time.monotonic() - clock
            timed_items += done.items
            recent = self._recent_metrics
            self._measure_step()
            epoch_over = self._at.cut == len(self.task)
            if epoch_over:
                self._end_epoch()
                self.run_folder.timing.append(
                    {
                        "epoch": self._at.epoch,
                        "seconds": timed_seconds,
                        f"{self.task.item}s": timed_items,
                    }
                )
                timed_items, timed_seconds = 0, 0.0
            if epoch_over or time.monotonic() - last_checkpoint >= self.checkpoint_seconds:
                self.save_checkpoint()
                last_checkpoint = time.monotonic()
            measured = tuple(self._measured)
            self._measured.clear()
            yield Progress(self._at.epoch, self._at.cut, recent, self._kl_per_item, measured)
            if self.stop:
                self.save_checkpoint()
                return

    def _step(self) -> Minibatch:
        at, method = self._at, self.method
        if at.cut == 0:
            self.task.begin_epoch(at.epoch)
            method.model.train()
        lr = self.config.learning_rate(at.epoch)
        self.optimizer.zero_grad()
        done = self.task.step(method, at.cut, self.noise)
        gradient_norm = total_norm(self.parameters).item()
        if not (math.isfinite(gradient_norm) and math.isfinite(done.loss)):
            self._diverged(done.loss / done.units)
        clip_factor = min(1.0, self.config.clip / (gradient_norm + 1e-6))
        if self.config.optimizer != "sgd":
            for parameter in self.parameters:
                if clip_factor < 1 and parameter.grad is not None:
                    parameter.grad.mul_(clip_factor)
            clip_factor = 1.0
        for group in self.optimizer.param_groups:
            # For SGD, scaling the learning rate clips the gradient without rewriting it.
            group["lr"] = lr * clip_factor * group["scale"]
        self._limit_rho_step()
        self.optimizer.step()
        method.after_step(lr=lr, kl_weight=done.kl_weight, generator=self.noise)

        at.cut += 1
        # At least once an epoch, so that it is never the initial weights that are validated.
        if self.average and at.cut % min(STEPS_BETWEEN_UPDATES, len(self.task)) == 0:
            self.average.update()
        at.nats += done.loss
        at.steps += done.units
        at.recent_nats += done.loss
        at.recent_steps += done.units
        for name, value in done.metrics.items():
            at.sums[name] = at.sums.get(name, 0.0) + float(value)
        recent = at.recent_nats / at.recent_steps
        if at.recent_steps > 20 * done.units and recent > self.task.hopeless:
            self._diverged(recent)
        return done

    def _limit_rho_step(self) -> None:
        """With a larger learning rate for rho, let no log sigma change by more than LARGEST_RHO_STEP."""
        # Adam's steps are limited by its learning rate.
        if self._rho is None or self.config.rho_lr == 1 or self.config.optimizer != "sgd":
            return
        assert self._rho.grad is not None
        limit = LARGEST_RHO_STEP / self.optimizer.param_groups[-1]["lr"]
        self._rho.grad.clamp_(-limit, limit)

    def _averaged(self) -> AbstractContextManager[None]:
        """Inside the block the model holds the weights that predict: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    @property
    def _recent_metrics(self) -> dict[str, Any]:
        return self.task.training_metrics(self._at.recent_nats / self._at.recent_steps)

    def _measure_step(self) -> None:
        """Append a line of metrics, if one is due."""
        at = self._at
        if at.cut % STEPS_BETWEEN_METRICS:
            return
        self._measure(
            {
                "kind": "step",
                "step": at.epoch * len(self.task) + at.cut,
                "epoch": at.epoch + at.cut / len(self.task),
                "lr": self.config.learning_rate(at.epoch),
                **self._recent_metrics,
                f"kl_per_{self.task.item}": self._kl(),
            }
        )
        at.recent_nats, at.recent_steps = 0.0, 0

    def _end_epoch(self) -> None:
        at = self._at
        self.method.after_epoch()
        with self._averaged():
            self._validate()
        at.begin_epoch()

    def _validate(self) -> None:
        """Append the epoch's line of metrics, and save the weights if they are the best so far."""
        at, method, task = self._at, self.method, self.task
        nats, valid = task.validate(method)
        if not nats < task.hopeless:
            self._diverged(nats)
        kl = self._kl()
        at.epoch += 1
        self._measure(
            {
                "kind": "epoch",
                "step": at.epoch * len(task),
                "epoch": at.epoch,
                "lr": self.config.learning_rate(at.epoch - 1),
                **task.training_metrics(at.nats / at.steps),
                f"kl_per_{task.item}": kl,
                **{f"{name}_per_{task.item}": sum_ / task.items for name, sum_ in at.sums.items()},
                **valid,
            }
        )
        reached = valid[task.goal.metric]
        if task.goal.better(reached, than=at.best):
            at.best, at.best_epoch = reached, at.epoch
            tensors = {
                name: tensor.detach().clone() for name, tensor in method.state_dict().items()
            }
            self._best = tensors, {**method.header(), "epoch": at.epoch}
            self.run_folder.save_weights(*self._best)

    def _kl(self) -> float | None:
        kl = self.method.kl()
        self._kl_per_item = None if kl is None else kl / self.task.items
        return self._kl_per_item

    def _measure(self, metrics: dict[str, Any]) -> None:
        self.run_folder.metrics.append(metrics)
        self._measured.append(metrics)

    def _diverged(self, nats: float) -> NoReturn:
        at, task = self._at, self.task
        raise Diverged(
            f"training diverged in epoch {at.epoch + 1}, step {at.cut}: {nats:.3g} nats per {task.item} "
            f"(the limit is {task.hopeless:.3g}). The last good checkpoint is kept in "
            f"{self.run_folder.folder}; start a new run with a lower --lr."
        )

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self) -> None:
        """Write the whole state of training; if that fails, the previous checkpoint remains."""
        tensors: dict[str, Tensor] = {
            "rng.noise": self.noise.get_state(),
            "rng.dropout": torch.get_rng_state() if self._running else self._dropout_rng,
            **{f"learner.{name}": tensor for name, tensor in self.method.state_dict().items()},
        }
        if self.average is not None:
            state = self.average.state_dict()
            tensors |= {f"average.{name}": tensor for name, tensor in state.items()}
        tensors |= {f"state.{name}": tensor for name, tensor in self.task.carried().items()}
        for index, parameter in enumerate(self.parameters):
            for name, tensor in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{index}.{name}"] = tensor
        best_header = None
        if self._best is not None:  # so that damage to the weights' own file can be mended
            best, best_header = self._best
            tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        metrics_size, metrics_sha256 = self.run_folder.metrics.sync()
        header = {
            "format": FORMAT,
            "position": self._at.to_header(),
            "best": best_header,
            "metrics_size": metrics_size,
            "metrics_sha256": metrics_sha256,
            "train_size": self.task.size,
            "machine": _machine(),
        }
        self.run_folder.save_checkpoint(tensors, header)

    def resume(self) -> list[str]:
        """Restore the run's last checkpoint; returns what the user should know of it, one line each.

        A run that was stopped before its first checkpoint begins anew.
        """
        found = read_checkpoint(self.run_folder)
        if found is None:
            if self.config.start:  # whose weights only the first checkpoint would have
                raise ValueError(
                    f"{self.run_folder.folder} was stopped before its first checkpoint; remove it, and begin "
                    f"again with --from {self.config.start}."
                )
            return []
        tensors, header, notes = found.tensors, found.header, list(found.notes)
        size = header.get("train_size", header.get("train_tokens"))
        if size != self.task.size:
            raise ValueError(
                f"the training data have {self.task.size} {self.task.item}s, and had {size} when the run "
                "began; give the same data, or start a new run."
            )
        self.method.load_state_dict(part("learner.", tensors))
        for name, tensor in part("optimizer.", tensors).items():
            index, _, own = name.partition(".")
            self.optimizer.state[self.parameters[int(index)]][own] = tensor
        if self.average is not None:
            self.average.load_state_dict(part("average.", tensors))
        self.noise.set_state(tensors["rng.noise"])
        self._dropout_rng = tensors["rng.dropout"]
        self._at = Position.from_header(header["position"])
        if self._at.cut:
            self.task.begin_epoch(self._at.epoch)
        self.task.carry(part("state.", tensors))
        if isinstance(header.get("best"), dict):
            self._best = part("best.", tensors), header["best"]
        notes += self._restore_weights() + _other_machine(header.get("machine"))
        self.run_folder.metrics.truncate(header["metrics_size"])
        return notes + self._restore_timing()

    def _restore_weights(self) -> list[str]:
        """See that the best weights so far are in their file; if they are damaged, write them anew."""
        at, run = self._at, self.run_folder
        if not at.best_epoch:
            return []
        problem = None
        try:
            tensors, header = load_tensors(run.weights)
            check_binding(header, run.weights, run.config)
            if self._best is None or digest(tensors, {}) == digest(self._best[0], {}):
                return []
        except ValueError as error:
            problem = str(error)
        if self._best is None:  # a checkpoint of an earlier version
            at.best, at.best_epoch = self.task.goal.worst, 0
            return [
                f"{problem} The best weights so far are lost; the next epoch's take their place."
            ]
        run.save_weights(*self._best)
        return [f"{problem} The weights were restored from the checkpoint."] if problem else []

    def _restore_timing(self) -> list[str]:
        """Remove what was written after the checkpoint; of a damaged file, keep the lines that are whole."""
        timing = self.run_folder.timing
        lines = timing.read(skip_damaged=True)
        notes = []
        try:
            timing.read()
        except ValueError as error:
            notes.append(f"{error} The other lines were kept.")
        timing.rewrite([line for line in lines if line.get("epoch", 0) <= self._at.epoch])
        return notes


def _machine() -> dict[str, Any]:
    """What the last bits of a result depend on, beside the run's settings."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "compiled": one_pass.enabled,
    }


def _other_machine(before: Any) -> list[str]:
    """A line for each of these that is not as it was."""
    now = _machine()
    before = before if isinstance(before, dict) else now
    changed = [
        f"{name} {before[name]}, now {now[name]}"
        for name in now
        if before.get(name, now[name]) != now[name]
    ]
    if not changed:
        return []
    return [
        f"resumed under other conditions ({'; '.join(changed)}): results are as good, but not equal to the "
        "last bit to those of a run that was never stopped."
    ]
