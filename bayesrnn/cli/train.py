"""`bayesrnn train`, `bayesrnn mnist`, ...: train a run of an experiment, or resume one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import tyro
from tyro.conf import OmitArgPrefixes, arg

from bayesrnn.cli import arguments as arguments_of
from bayesrnn.cli.arguments import Between
from bayesrnn.cli.console import note, show, show_json
from bayesrnn.training.experiment import Experiment, Prepared, open_run
from bayesrnn.training.settings import Settings, check_resumable

if TYPE_CHECKING:
    from bayesrnn.training.loop import Trainer

C = TypeVar("C", bound=Settings)

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and how machines are shut down and jobs preempted."""


@dataclass(frozen=True)
class Train(Generic[C]):
    """The options of a training command: the settings of its experiment, and these."""

    config: Annotated[OmitArgPrefixes[C], arg(name="")]
    run: str = ""
    """Run folder; by default a name made from the settings, in runs/."""
    resume: bool = False
    """Resume the run in the folder given by --run, with its own settings."""
    checkpoint_minutes: Annotated[float, Between(0, 1e6)] = 10.0
    """Minutes between checkpoints; one is also written after each epoch."""
    tensorboard: bool = True
    """Write the metrics for TensorBoard as well, if it is installed."""
    json: bool = False
    """Print only the last epoch's metrics, as JSON."""


def run(experiment: Experiment, arguments: list[str]) -> None:
    """Parse the arguments and train."""
    options = tyro.cli(
        Train[experiment.config],
        prog=f"bayesrnn {experiment.command}",
        description=f"{experiment.summary}\n\nRuns are written to {experiment.run_name} by default.",
        args=arguments,
        default=Train(_defaults(experiment, arguments)),
    )
    arguments_of.check(options)
    _train(experiment, options)


def _defaults(experiment: Experiment, arguments: list[str]) -> Settings:
    """The default of every option: the resumed run's settings, or those of the preset and method given."""
    folder = _given(arguments, "run")
    if "--resume" in arguments and folder is not None:
        return open_run(Path(folder), experiment).config
    named = {field.name: _given(arguments, field.name) for field in fields(experiment.config)}
    return experiment.defaults({name: value for name, value in named.items() if value is not None})


def _given(arguments: list[str], name: str) -> str | None:
    """The value given for an option, or None."""
    option = "--" + name.replace("_", "-")
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.split("=", 1)[1]
    return None


def _train(experiment: Experiment, options: Train[Any]) -> None:
    from bayesrnn.files import locked
    from bayesrnn.memory import keep_memory
    from bayesrnn.training.loop import Trainer
    from bayesrnn.training.run import Run

    config = options.config
    folder = Path(options.run or Path("runs") / experiment.folder_name(config))
    resumed = open_run(folder, experiment) if options.resume else None
    if resumed:
        check_resumable(resumed.config, config)
    ready: Prepared = experiment.prepare(config, resumed)
    for line in ready.notes:
        note(line)
    run = Run(folder, ready.config, tuple(ready.files), ready.data)
    trainer = Trainer(run, ready.task, ready.method, checkpoint_minutes=options.checkpoint_minutes)
    if not resumed:
        run.make_folder()
    keep_memory()
    with locked(folder):
        if resumed:
            for line in trainer.resume():
                note(line)
            run.write_config()
        else:
            run.write(ready.files)
        last = _follow(trainer, experiment, tensorboard=options.tensorboard, quiet=options.json)
    if options.json:
        show_json(last or (run.read_metrics("epoch") or [{}])[-1])
    elif trainer.stop:
        epochs, minibatch = trainer.position
        show(f"stopped after {epochs} epochs and {minibatch} steps; resume with:")
        show(f"  bayesrnn {experiment.command} --resume --run {folder}")
    if trainer.stop:
        sys.exit(128 + trainer.stop)
    if not options.json:
        best, epoch = trainer.best
        files = ["weights.safetensors", "metrics.jsonl", "config.toml", *ready.files]
        show(f"best {experiment.goal_text(best)}, in epoch {epoch}")
        show(f"wrote {folder}: {', '.join(files)}")


def _follow(
    trainer: Trainer, experiment: Experiment, *, tensorboard: bool, quiet: bool
) -> Mapping[str, Any] | None:
    """Train until done or Ctrl-C, showing a progress bar and each epoch's line; returns the last metrics."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    board = _board(trainer.run_folder.folder) if tensorboard else None
    per_epoch = len(trainer.task)
    last = None
    columns = (TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, lambda number, _: _stop(trainer, number))
    with Progress(*columns, transient=True, disable=quiet or not sys.stdout.isatty()) as bar:
        epochs, done = trainer.position
        shown = bar.add_task(
            "starting",
            total=trainer.config.epochs * per_epoch,
            completed=epochs * per_epoch + done,
        )
        for state in trainer.run():
            kl = state.kl_per_item
            cost = "" if kl is None else f"  KL {kl:.3f}/{trainer.task.item}"
            text = experiment.progress_text(state.metrics)
            bar.update(
                shown,
                completed=state.epoch * per_epoch + state.minibatch,
                description=f"epoch {state.epoch + 1}  {text}{cost}",
            )
            for measured in state.measured:
                if board is not None:
                    _log(board, measured)
                if measured["kind"] == "epoch":
                    last = measured
                    if not quiet:
                        line = experiment.epoch_line(measured)
                        bar.console.print(line, highlight=False, soft_wrap=True)
    for number, handler in before.items():
        signal.signal(number, handler)
    if board is not None:
        board.close()
    return last


def _stop(trainer: Trainer, number: int) -> None:
    """Save and end after the current step; a second Ctrl-C ends at once."""
    if trainer.stop and number == signal.SIGINT:
        raise KeyboardInterrupt
    trainer.stop = number


def _board(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard")


def _log(board: Any, metrics: Mapping[str, Any]) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name not in ("step", "epoch"):
            board.add_scalar(name, value, metrics["step"])
    board.flush()
