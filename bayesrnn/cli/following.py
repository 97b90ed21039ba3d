"""What the commands that train have in common: the bar, the lines, Ctrl-C, and going on."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bayesrnn.config import Settings
from bayesrnn.training.loop import Trainer
from bayesrnn.training.memory import keep_memory


def follow(
    trainer: Trainer,
    *,
    command: str,
    describe: Callable[[dict[str, Any]], str],
    epoch_line: Callable[[dict[str, Any]], str],
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Train to the end, showing a bar, a line an epoch, and at Ctrl-C how to go on; or one line of JSON."""
    run = trainer.run_folder
    keep_memory()
    last = _train(trainer, describe, epoch_line, tensorboard, quiet=as_json)
    if as_json:
        print(json.dumps(last or (run.read_metrics("epoch") or [{}])[-1]))
    elif trainer.stop:
        epochs, minibatch = trainer.position
        print(f"stopped after {epochs} epochs and {minibatch} steps; go on with:")
        print(f"  bayesrnn {command} --resume --run {run.folder}")
    if trainer.stop:
        sys.exit(130)


def check_same_settings(began: Settings, asked: Settings) -> None:
    """A resumed run may be longer, and its data may have moved; nothing else may change."""
    for field in fields(began):
        before, now = getattr(began, field.name), getattr(asked, field.name)
        if before != now and field.name not in ("data", "epochs", "patience"):
            option = field.name.replace("_", "-")
            raise ValueError(
                f"--{option} {now} cannot be changed with --resume (the run began with {before}); "
                "start a new run."
            )


def _train(
    trainer: Trainer,
    describe: Callable[[dict[str, Any]], str],
    epoch_line: Callable[[dict[str, Any]], str],
    tensorboard: bool,
    *,
    quiet: bool,
) -> dict[str, Any] | None:
    board = _board(trainer.run_folder.folder) if tensorboard else None
    per_epoch = len(trainer.task)
    last = None
    columns = (TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
    signal.signal(signal.SIGINT, lambda *_: _stop(trainer))
    with Progress(*columns, transient=True, disable=quiet or not sys.stdout.isatty()) as bar:
        epochs, done = trainer.position
        task = bar.add_task(
            "starting",
            total=trainer.config.epochs * per_epoch,
            completed=epochs * per_epoch + done,
        )
        for state in trainer.run():
            kl = state.kl_per_item
            cost = "" if kl is None else f"  KL {kl:.3f}/{trainer.task.item}"
            bar.update(
                task,
                completed=state.epoch * per_epoch + state.minibatch,
                description=f"epoch {state.epoch + 1}  {describe(state.metrics)}{cost}",
            )
            for measured in state.measured:
                if board is not None:
                    _log(board, measured)
                if measured["kind"] == "epoch":
                    last = measured
                    if not quiet:
                        bar.console.print(epoch_line(last), highlight=False, soft_wrap=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if board is not None:
        board.close()
    return last


def _stop(trainer: Trainer) -> None:
    if trainer.stop:
        raise KeyboardInterrupt
    trainer.stop = True


def _board(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard")


def _log(board, metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name not in ("step", "epoch"):
            board.add_scalar(name, value, metrics["step"])
    board.flush()
