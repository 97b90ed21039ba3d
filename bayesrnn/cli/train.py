"""`bayesrnn train`, `bayesrnn mnist`, ...: train a run of an experiment, or resume one."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from tyro.conf import OmitArgPrefixes, arg

from bayesrnn.cli import arguments as arguments_of
from bayesrnn.cli.arguments import Between, Source
from bayesrnn.cli.console import note, show, show_json
from bayesrnn.cli.kinds import LANGUAGE
from bayesrnn.cli.launch import OnRanks, launch
from bayesrnn.cli.parsing import parse
from bayesrnn.cli.training_output import following, nothing_to_do, start_line
from bayesrnn.training.experiment import Experiment, Prepared, open_run, read_settings
from bayesrnn.training.settings import Settings, check_resumable

if TYPE_CHECKING:
    from bayesrnn.training.loop import Trainer
    from bayesrnn.training.run import Run

C = TypeVar("C", bound=Settings)

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and how machines are shut down and jobs preempted."""


@dataclass(frozen=True)
class Train(OnRanks, Generic[C]):
    """The options of a training command: the settings of its experiment, and these."""

    STRAY: ClassVar = "give the data with --data"

    config: Annotated[OmitArgPrefixes[C], arg(name="")]
    run: Source = ""
    """Run folder; by default a name made from the settings, in runs/. Also --run-folder: torchrun takes --run
    for an option of its own."""
    from_run: Annotated[Source, arg(name="from")] = ""
    """Run to start from: its weights become the new run's first weights, or the mean of its posterior."""
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
    arguments = [re.sub(r"^--run-folder(?==|$)", "--run", argument) for argument in arguments]
    options = parse(
        Train[experiment.config],
        f"bayesrnn {experiment.command}",
        arguments,
        description=f"{experiment.summary}\n\nRuns are written to {experiment.run_name} by default.",
        default=Train(_defaults(experiment, arguments)),
    )
    arguments_of.check(options)
    if options.resume and not options.run:
        raise ValueError("--resume needs --run FOLDER.")
    launch(options, lambda: _train(experiment, options))


def _defaults(experiment: Experiment, arguments: list[str]) -> Settings:
    """The default of every option: the resumed run's settings, or those of the preset and method given."""
    folder = _given(arguments, "run")
    if "--resume" in arguments and folder is not None:
        return open_run(Path(folder), experiment).config
    named = {field.name: _given(arguments, field.name) for field in fields(experiment.config)}
    given = {name: value for name, value in named.items() if value is not None}
    source = _given(arguments, "from")
    if not source:
        return experiment.defaults(given)
    start = read_settings(Path(source), experiment)
    places = () if "data" in given else start.PLACES
    like_start = {name: getattr(start, name) for name in (*places, *start.SIZES)}
    for name in ("data", "preset"):
        if hasattr(start, name):
            given.setdefault(name, getattr(start, name))
    return replace(experiment.defaults(given), **like_start)


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
    from bayesrnn import ranks
    from bayesrnn.files import locked
    from bayesrnn.memory import keep_memory
    from bayesrnn.training.loop import Trainer
    from bayesrnn.training.run import Run

    folder = Path(options.run or Path("runs") / experiment.folder_name(options.config))
    options, resumed, ready = ranks.agree(lambda: _ready(experiment, options, folder))
    ranks.check_same({**asdict(ready.config), "data": ready.data}, "settings or data")
    for line in ready.notes:
        note(line)
    run = Run(folder, ready.config, tuple(ready.files), ready.data)
    trainer = Trainer(run, ready.task, ready.method, checkpoint_minutes=options.checkpoint_minutes)
    first = ranks.is_first()
    if first and not resumed:
        run.make_folder()
    keep_memory()
    with locked(folder) if first else nullcontext():
        if resumed:
            for line in trainer.resume():
                note(line)
        if trainer.finished:
            last = None
            if resumed and first:
                resumed.write_config()  # with the settings it has, as this version writes them
            text = nothing_to_do(trainer, experiment, folder)
        else:
            if first:
                run.write_config() if resumed else run.write(ready.files)
                _mark_launch(folder)
            if not options.json:
                show(start_line(trainer, ready, folder))
            last = _follow(
                trainer, experiment, tensorboard=options.tensorboard and first, quiet=options.json
            )
            text = _end_text(trainer, experiment, folder, ready)
    if options.json and first:
        show_json(last or (run.read_metrics("epoch") or [{}])[-1])
    elif not options.json:
        show(text)
    if trainer.stop:
        sys.exit(128 + trainer.stop)


def _ready(
    experiment: Experiment, options: Train[Any], folder: Path
) -> tuple[Train[Any], Run | None, Prepared]:
    """The options, the run that is resumed, if one is, and everything needed to train."""
    if _was_restarted(folder):
        config = open_run(folder, experiment).config
        options = replace(options, config=config, resume=True, from_run="")
    resumed = open_run(folder, experiment) if options.resume else None
    return options, resumed, _prepared(experiment, options, resumed)


LAUNCH = ".bayesrnn-launch"
"""In the folder of a run that torchrun trains: which torchrun, so that ranks it restarts resume the run."""


def _mark_launch(folder: Path) -> None:
    from bayesrnn.files import write_text

    if _launch():
        write_text(folder / LAUNCH, _launch())


def _was_restarted(folder: Path) -> bool:
    """Whether torchrun has restarted these ranks, after one of them died while they trained this run."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return False
    mark = folder / LAUNCH
    return _launch() != "" and mark.is_file() and mark.read_text("utf-8") == _launch()


def _launch() -> str:
    """The name of the torchrun that started this process, if it has one: its own, or by --rdzv-id."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def _prepared(experiment: Experiment, options: Train[Any], resumed: Run | None) -> Prepared:
    """The data, model and method: of a run to resume, of one that starts from another, or of a new one."""
    from bayesrnn.training.start import started

    if resumed:
        if options.from_run:
            raise ValueError("--from is for a new run; leave it out to resume one.")
        check_resumable(resumed.config, options.config)
        _check_text(resumed, options.config)
        return experiment.prepare(options.config, resumed)
    if not options.from_run:
        return experiment.prepare(options.config, None)
    source = open_run(Path(options.from_run), experiment)
    _check_text(source, options.config)
    return started(experiment.prepare(options.config, source), source)


def _check_text(before: Run, config: Any) -> None:
    """Raise ValueError if a run's own text, which is to be read again, is not where it was."""
    from bayesrnn.tasks.language.data.sources import check_own_text

    if before.config.TASK == LANGUAGE and config.data == before.config.data:  # pyright: ignore
        check_own_text(before.folder, config.data)


def _end_text(trainer: Trainer, experiment: Experiment, folder: Path, ready: Prepared) -> str:
    """What was reached and written, or how to continue a run that was stopped."""
    from bayesrnn import ranks

    if trainer.stop:
        epochs, minibatch = trainer.position
        again = f"bayesrnn {experiment.command} --resume --run {folder}"
        if ranks.world() > 1:
            again = f"torchrun --nproc-per-node {ranks.world()} -m {again.replace('--run', '--run-folder')}"
        return f"stopped after {epochs} epochs and {minibatch} steps; resume with:\n  {again}"
    best, epoch = trainer.best
    files = ["weights.safetensors", "metrics.jsonl", "config.toml", *ready.files]
    return (
        f"best {experiment.goal_text(best)}, in epoch {epoch}\nwrote {folder}: {', '.join(files)}"
    )


def _follow(
    trainer: Trainer, experiment: Experiment, *, tensorboard: bool, quiet: bool
) -> Mapping[str, Any] | None:
    """Train until done or Ctrl-C, and show how it goes; returns the last epoch's metrics."""
    last = None
    with (
        _board(trainer.run_folder.folder, wanted=tensorboard) as log,
        stopped_by_signals(trainer),
        following(trainer, experiment, quiet=quiet) as tell,
    ):
        for state in trainer.run():
            tell(state)
            for measured in state.measured:
                log(measured)
                if measured["kind"] == "epoch":
                    last = measured
    return last


class Stoppable(Protocol):
    """What is training: it ends soon after `stop` is set to the number of a signal."""

    stop: int


@contextmanager
def stopped_by_signals(trainer: Stoppable) -> Iterator[None]:
    """Inside the block a signal stops training; afterwards it does what it did before."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, lambda number, _: _stop(trainer, number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(trainer: Stoppable, number: int) -> None:
    """Save and end after the current step; a second Ctrl-C ends at once."""
    if trainer.stop and number == signal.SIGINT:
        raise KeyboardInterrupt
    trainer.stop = number


@contextmanager
def _board(folder: Path, *, wanted: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields a function that logs a line of metrics for TensorBoard, if that is wanted and installed."""
    try:
        if not wanted:
            raise ImportError
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda metrics: None
        return
    with SummaryWriter(folder / "tensorboard") as board:
        yield lambda metrics: _log(board, metrics)


def _log(board: Any, metrics: Mapping[str, Any]) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name not in ("step", "epoch"):
            board.add_scalar(name, value, metrics["step"])
    board.flush()
