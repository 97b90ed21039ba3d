"""What a training command says while it trains: a progress bar in a terminal, lines in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.cli.console import one_line, show
from bayesrnn.training.experiment import Experiment, Prepared

if TYPE_CHECKING:
    from bayesrnn.training.loop import Progress, Trainer

SECONDS_BETWEEN_LINES = 30.0
"""How often a log file gets a line while an epoch lasts."""

Tell = Callable[["Progress"], None]
"""To be called after each step."""


def start_line(trainer: Trainer, ready: Prepared, folder: Path) -> str:
    """What is trained, on what, how long and where."""
    import torch

    epochs, steps = trainer.position
    resumed = (
        f", after {_count(epochs, 'epoch')} and {_count(steps, 'step')}" if epochs or steps else ""
    )
    task, config = trainer.task, ready.config
    data = ready.summary or f"{config.data}: {task.items:,} {task.item}s"
    weights = sum(weight.numel() for weight in trainer.method.weights().values())
    length = f"{_count(config.epochs, 'epoch')} of {_count(len(task), 'step')}"
    return one_line(
        f"training {config.method} on {data}; {weights:,} weights, {length}{resumed}, "
        f"{_count(torch.get_num_threads(), 'thread')}, run folder {folder}"
    )


def nothing_to_do(trainer: Trainer, experiment: Experiment, folder: Path) -> str:
    """Why a finished run does not train, and which options would make it."""
    epochs, _ = trainer.position
    best, best_epoch = trainer.best
    reached = f" (best {experiment.goal_text(best)}, in epoch {best_epoch})" if best_epoch else ""
    cures = []
    if epochs >= trainer.config.epochs:
        cures.append(f"--epochs {epochs + 1} or more")
    if trainer.stalled:
        cures.append(f"--patience {epochs - best_epoch + 1} or more")
    return one_line(
        f"{folder} has trained for {_count(epochs, 'epoch')} already{reached}; give {' and '.join(cures)} to "
        "train further."
    )


def following(
    trainer: Trainer, experiment: Experiment, *, quiet: bool
) -> AbstractContextManager[Tell]:
    """Inside the block, what the user sees of training; yields a function to call after each step."""
    if quiet:
        return _silence()
    return (_bar if sys.stdout.isatty() else _lines)(trainer, experiment)


@contextmanager
def _silence() -> Iterator[Tell]:
    yield lambda state: None


@contextmanager
def _bar(trainer: Trainer, experiment: Experiment) -> Iterator[Tell]:
    """A progress bar, and a line after each epoch."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    per_epoch = len(trainer.task)
    epochs, steps = trainer.position
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TimeRemainingColumn())
    with Progress(*columns, transient=True) as bar:
        shown = bar.add_task(
            "compiling" if trainer.compiles else "starting",
            total=trainer.config.epochs * per_epoch,
            completed=epochs * per_epoch + steps,
        )

        def tell(state: Progress) -> None:
            done = state.epoch * per_epoch + state.minibatch
            text = f"epoch {state.epoch + 1}  {_measured(trainer, experiment, state)}"
            bar.update(shown, completed=done, description=text)
            for line in _epoch_lines(experiment, state):
                bar.console.print(Text(line), soft_wrap=True)

        yield tell


@contextmanager
def _lines(trainer: Trainer, experiment: Experiment) -> Iterator[Tell]:
    """A line after each epoch, and one every half minute while it lasts."""
    if trainer.compiles:
        show(
            "compiling the passes over the weights: up to half a minute, the first time on a machine"
        )
    last_line = time.monotonic()
    pace: _Pace | None = None

    def tell(state: Progress) -> None:
        nonlocal last_line, pace
        at = state.epoch + state.minibatch / len(trainer.task)
        pace = pace or _Pace(at)
        lines = _epoch_lines(experiment, state)
        if not lines and time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            share = f"epoch {state.epoch + 1:3d}  {state.minibatch / len(trainer.task):3.0%}"
            lines = [f"{share}  {_measured(trainer, experiment, state)}{pace.text(at, trainer)}"]
        for line in lines:
            show(line)
            last_line = time.monotonic()

    yield tell


class _Pace:
    """How fast training goes, from its first step on: not before, since that one may compile."""

    def __init__(self, at: float) -> None:
        self.begin, self.clock = at, time.monotonic()

    def text(self, at: float, trainer: Trainer) -> str:
        """Items per second and the time left, where `at` is the number of epochs done."""
        seconds = time.monotonic() - self.clock
        if at <= self.begin or seconds <= 0:
            return ""
        epochs_per_second = (at - self.begin) / seconds
        left = (trainer.config.epochs - at) / epochs_per_second
        speed = epochs_per_second * trainer.task.items
        return f"  {speed:,.0f} {trainer.task.item}s/s  {duration(left)} left"


def duration(seconds: float) -> str:
    """A time for people, such as 40 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _measured(trainer: Trainer, experiment: Experiment, state: Progress) -> str:
    kl = state.kl_per_item
    cost = "" if kl is None else f"  KL {kl:.3f} nats/{trainer.task.item}"
    return experiment.progress_text(state.metrics) + cost


def _epoch_lines(experiment: Experiment, state: Progress) -> list[str]:
    return [experiment.epoch_line(line) for line in state.measured if line["kind"] == "epoch"]
