"""The training loop, on one process or on many. A stopped run resumes from its checkpoint bit for bit.

Started by torchrun, each rank computes its part of every minibatch, and the gradients are added up; the
weights are the same on all ranks, to the last bit. The first rank alone writes files.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrnn import ranks
from bayesrnn.devices import rng_state, set_rng_state
from bayesrnn.kernels import one_pass
from bayesrnn.methods import Method
from bayesrnn.training import Diverged
from bayesrnn.training.averaging import STEPS_BETWEEN_UPDATES, WeightAverage
from bayesrnn.training.checkpoint import Position
from bayesrnn.training.experiment import Minibatch, Part, Task
from bayesrnn.training.randomness import Randomness
from bayesrnn.training.run import Run
from bayesrnn.training.state import TrainingState
from bayesrnn.training.update import Update
from bayesrnn.weights import processes

STEPS_BETWEEN_METRICS = 100
STEPS_BETWEEN_READS = 10
"""Steps after which losses are read from a GPU: to read each at once would make it wait."""


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
        self.update = Update(method, config, task.rates())
        self.device = self.update.device
        self.parts = own_parts(task.rows, config.accumulate)
        trained = self.update.parameters
        self.average = WeightAverage(trained, config.average) if config.average else None
        self.random = Randomness(config, self.device)
        if ranks.world() > 1 and config.shared_noise:
            method.share_noise()
        self.checkpoint_seconds = 60 * checkpoint_minutes
        self.stop: int = 0
        self.state = TrainingState(run, task, method, self.update, self.average, self.random)
        self._measured: list[dict[str, Any]] = []
        self._unread: list[tuple[Minibatch, Tensor]] = []
        self._timed_items = 0
        self._last_checkpoint = 0.0
        self._checkpoint_due = False
        self._stopping = False
        """Whether some rank was told to stop, when they last exchanged that: all know it at the same step."""
        self._kl_per_item: float | None = None

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
        rho = self.update.rho
        return rho is not None and one_pass.enabled and rho.numel() >= one_pass.LONG

    @property
    def position(self) -> tuple[int, int]:
        """Epochs done, and minibatches done in the current one."""
        return self._at.epoch, self._at.cut

    @property
    def best(self) -> tuple[float, int]:
        """The best value of the goal and its epoch, counted from 1."""
        return self._at.best, self._at.best_epoch

    @property
    def _at(self) -> Position:
        return self.state.at

    def resume(self) -> list[str]:
        """Restore the run's last checkpoint; returns what the user should know of it, one line each."""
        return self.state.resume()

    def save_checkpoint(self) -> None:
        """Write the whole state of training; if that fails, the previous checkpoint remains."""
        self._read()
        self.state.save()

    def run(self) -> Iterator[Progress]:
        """Train, yielding after each step, until done, stopped or out of patience."""
        ranks.check_same(self.state.conditions(), "torch, threads or devices")
        processes.check_equal(
            **{f"parameters {n}": p for n, p in enumerate(self.update.parameters)}
        )
        try:
            with self.random.in_use(), processes.unwrapped():
                new_run = self._at == Position(self.task.goal.worst)
                if new_run:  # a checkpoint at once, so that it can be resumed whatever happens
                    if ranks.is_first():
                        self.run_folder.metrics.truncate(0)
                    self.save_checkpoint()
                yield from self._steps()
        except OSError as error:
            raise OSError(
                f"cannot write to {self.run_folder.folder}: {error}. What was written before is intact; make "
                "room and continue with --resume."
            ) from None

    def validate(self) -> float:
        """The goal now, at the weights that predict; training goes on as if nobody had asked."""
        model, random = self.method.model, rng_state(self.device)
        training = model.training
        averaged = self.average is not None and self.average.updates > 0
        try:
            with self._averaged() if averaged else nullcontext():
                _, valid = self.task.validate(self.method)
        finally:
            model.train(training)
            set_rng_state(self.device, random)
        return valid[self.task.goal.metric]

    def _steps(self) -> Iterator[Progress]:
        self._last_checkpoint = time.monotonic()
        timed_seconds = 0.0
        while not self.finished:
            clock = time.monotonic()
            self._step()
            timed_seconds += time.monotonic() - clock
            recent = self._recent_metrics
            self._measure_step()
            epoch_over = self._at.cut == len(self.task)
            if epoch_over:
                self._end_epoch()
                items = {f"{self.task.item}s": self._timed_items}
                if ranks.is_first():
                    self.run_folder.timing.append(
                        {"epoch": self._at.epoch, "seconds": timed_seconds, **items}
                    )
                self._timed_items, timed_seconds = 0, 0.0
            if epoch_over or self._checkpoint_due:
                self.save_checkpoint()
                self._last_checkpoint, self._checkpoint_due = time.monotonic(), False
            measured = tuple(self._measured)
            self._measured.clear()
            yield Progress(self._at.epoch, self._at.cut, recent, self._kl_per_item, measured)
            if self._stopping if ranks.world() > 1 else self.stop:
                self.save_checkpoint()
                return

    def _step(self) -> None:
        at, method = self._at, self.method
        if at.cut == 0:
            self.task.begin_epoch(at.epoch)
            method.model.train()
        lr = self.config.learning_rate(at.epoch)
        self.update.zero_grad()
        done = self._gradients()
        ranks.sum_(*self.update.gradients())
        gradient_norm = self.update.gradient_norm()
        self._unread.append((done, gradient_norm))
        if self.device.type == "cpu" or len(self._unread) == STEPS_BETWEEN_READS:
            self._read()
        self.update.step(lr, gradient_norm)
        method.after_step(lr=lr, kl_weight=done.kl_weight, generator=self.random.common)

        at.cut += 1
        ranks.sign_of_life(at.epoch * len(self.task) + at.cut)
        # At least once an epoch, so that it is never the initial weights that are validated.
        if self.average and at.cut % min(STEPS_BETWEEN_UPDATES, len(self.task)) == 0:
            self.average.update()

    def _gradients(self) -> Minibatch:
        """The gradients of this rank's parts of the minibatch, and what they add up to."""
        task, noise = self.task, self.random.noise
        first, *others = self.parts
        before = noise.get_state() if others and self.config.shared_noise else None
        done = task.step(self.method, self._at.cut, first, noise)
        for other in others:
            if before is not None:
                noise.set_state(before)
            more = task.step(self.method, self._at.cut, other, noise)
            done = replace(
                done,
                loss=done.loss + more.loss,
                units=done.units + more.units,
                items=done.items + more.items,
                metrics={name: value + more.metrics[name] for name, value in done.metrics.items()},
            )
        return done

    def _read(self) -> None:
        """Add the losses of the latest steps, over all ranks, to the sums of the epoch."""
        at, unread = self._at, self._unread
        if not unread:
            return
        self._unread = []
        names = list(unread[0][0].metrics)
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        columns = (
            [norm, done.loss, *(torch.as_tensor(done.metrics[name]) for name in names)]
            for done, norm in unread
        )
        rows = torch.stack([torch.stack([v.to(exact) for v in row]) for row in columns])
        due = time.monotonic() - self._last_checkpoint >= self.checkpoint_seconds
        # Whoever is told to stop, all do; when to write is for the first to say.
        flags = [float(self.stop != 0), float(due and ranks.is_first())]
        counts = torch.tensor([[d.units, d.items, *flags] for d, _ in unread], dtype=torch.float64)
        norms, *sums = torch.cat([rows.cpu().double(), counts], 1).unbind(1)
        added = torch.stack(sums)
        ranks.sum_(added)
        self._stopping, self._checkpoint_due = added[-2:, -1].bool().tolist()
        if self._stopping:
            self.stop = self.stop or signal.SIGTERM
        for norm, (loss, *metrics, units, items, _, _) in zip(
            norms.tolist(), added.T.tolist(), strict=True
        ):
            if not (math.isfinite(norm) and math.isfinite(loss)):
                self._diverged(loss / units)
            at.nats += loss
            at.steps += units
            at.recent_nats += loss
            at.recent_steps += units
            for name, value in zip(names, metrics, strict=True):
                at.sums[name] = at.sums.get(name, 0.0) + value
            self._timed_items += int(items)
            recent = at.recent_nats / at.recent_steps
            if at.recent_steps > 20 * units and recent > self.task.hopeless:
                self._diverged(recent)

    def _averaged(self) -> AbstractContextManager[None]:
        """Inside the block the model holds the weights that predict: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    @property
    def _recent_metrics(self) -> dict[str, Any]:
        if not self._at.recent_steps:
            self._read()
        return self.task.training_metrics(self._at.recent_nats / self._at.recent_steps)

    def _measure_step(self) -> None:
        """Append a line of metrics, if one is due."""
        at = self._at
        if at.cut % STEPS_BETWEEN_METRICS:
            return
        self._read()
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
        self._read()
        self.method.after_epoch()
        with self._averaged():
            self._validate()
        at.begin_epoch()

    def _validate(self) -> None:
        """Append the epoch's line of metrics, and save the weights if they are the best so far."""
        at, method, task = self._at, self.method, self.task
        measured = task.validate(method)
        # Ranks that compute it each for themselves could differ in the last bit, and then in what follows.
        found = ranks.broadcast_bytes(lambda: json.dumps(measured).encode())
        nats, valid = json.loads(found)
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
            self.state.save_best()

    def _kl(self) -> float | None:
        kl = self.method.kl()
        self._kl_per_item = None if kl is None else kl / self.task.items
        return self._kl_per_item

    def _measure(self, metrics: dict[str, Any]) -> None:
        if ranks.is_first():
            self.run_folder.metrics.append(metrics)
        self._measured.append(metrics)

    def _diverged(self, nats: float) -> NoReturn:
        at, task = self._at, self.task
        raise Diverged(
            f"training diverged in epoch {at.epoch + 1}, step {at.cut}: {nats:.3g} nats per {task.item} "
            f"(the limit is {task.hopeless:.3g}). The last good checkpoint is kept in "
            f"{self.run_folder.folder}; start a new run with a lower --lr."
        )


def own_parts(rows: int, accumulate: int) -> list[Part]:
    """This rank's parts of a minibatch of `rows` streams or examples, which all ranks together compute."""
    count = ranks.world() * accumulate
    if count > rows:
        by = f"{ranks.world()} ranks" + (f" x {accumulate} parts" if accumulate > 1 else "")
        raise ValueError(
            f"a minibatch of {rows} cannot be divided into {count} parts ({by}); raise --batch-size, or use "
            "fewer."
        )
    first = ranks.rank() * accumulate
    return [Part(first + number, count) for number in range(accumulate)]
