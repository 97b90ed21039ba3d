"""One trial: a run folder that is trained, or resumed, as the training command does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bayesrnn.files import is_run, locked
from bayesrnn.training.experiment import Experiment, open_run
from bayesrnn.training.loop import Progress, Trainer
from bayesrnn.training.run import Run
from bayesrnn.training.settings import Settings, check_resumable

Report = Callable[[int, float], bool]
"""Called with a step and a value of the goal; whether to prune."""
Follow = Callable[[Trainer, Progress], int]
"""Called after each step; the number of a signal to stop for, or 0."""


class Busy(Exception):
    """Another process has the run folder."""


@dataclass(frozen=True)
class Outcome:
    """How training has ended, other than by an error."""

    state: Literal["complete", "pruned", "stopped"]
    value: float | None = None
    """The best value of the goal, of a complete trial."""


def train_trial(
    experiment: Experiment,
    config: Settings,
    folder: Path,
    *,
    reports_per_epoch: int,
    report: Report,
    follow: Follow,
) -> Outcome:
    """Train the run in a folder, from its last checkpoint if it has one."""
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        _lock(folder, stack)
        trainer = _trainer(experiment, config, folder)
        # What a worker had trained and not yet reported when it died.
        goal = trainer.task.goal.metric
        for line in trainer.run_folder.read_metrics("epoch"):
            if report(line["epoch"] * reports_per_epoch, line[goal]):
                return Outcome("pruned")
        # Closed before anything else is trained: it puts back the state of torch's random numbers.
        with closing(trainer.run()) as steps:  # pyright: ignore[reportArgumentType]
            for state in steps:
                trainer.stop = follow(trainer, state)
                value = None if trainer.stop else _due(trainer, state, reports_per_epoch)
                step = _step(trainer, state, reports_per_epoch)
                if value is not None and report(step, value):
                    return Outcome("pruned")
        if trainer.stop:
            return Outcome("stopped")
        return Outcome("complete", trainer.best[0])


def _lock(folder: Path, stack: ExitStack) -> None:
    """Hold the folder's lock; others may have it for a moment, to see whether it is free."""
    for again in (*(True,) * 10, False):
        try:
            stack.enter_context(locked(folder))
            return
        except ValueError as error:
            if not again:
                raise Busy(str(error)) from None
            time.sleep(0.1)


def _trainer(experiment: Experiment, config: Settings, folder: Path) -> Trainer:
    before = open_run(folder, experiment) if is_run(folder) else None
    ready = experiment.prepare(config, before)
    run = Run(folder, ready.config, tuple(ready.files), ready.data)
    trainer = Trainer(run, ready.task, ready.method)
    if before is None:
        run.write(ready.files)
        return trainer
    try:
        check_resumable(before.config, ready.config)
        if before.config.epochs != ready.config.epochs:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{folder} is a run with other settings; remove it, or choose another --folder."
        ) from None
    trainer.resume()
    return trainer


def _due(trainer: Trainer, state: Progress, reports_per_epoch: int) -> float | None:
    """The goal, if a report is due after this step."""
    goal = trainer.task.goal.metric
    for line in state.measured:
        if line["kind"] == "epoch":
            return line[goal]
    parts, length = reports_per_epoch * state.minibatch, len(trainer.task)
    if parts // length == (parts - reports_per_epoch) // length:
        return None
    value = trainer.validate()
    return value if math.isfinite(value) else None


def _step(trainer: Trainer, state: Progress, reports_per_epoch: int) -> int:
    """The number of reports up to now."""
    within = reports_per_epoch * state.minibatch // len(trainer.task)
    return reports_per_epoch * state.epoch + within
