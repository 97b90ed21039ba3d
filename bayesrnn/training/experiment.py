"""What an experiment is: the seam between the loop, run folders, report and command, and each kind of run.

The loop and the commands know experiments only by these protocols and by name. Experiments stand in
`bayesrnn.tasks`, a folder each. No torch is loaded here, so that `--help` need not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bayesrnn.training.settings import Settings, read_toml

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from bayesrnn.methods import Method
    from bayesrnn.training.run import Run

Progress = Callable[[str], None]
"""Is told what is being done."""


@dataclass(frozen=True)
class Goal:
    """The validation metric that decides which epoch was best."""

    metric: str
    higher_is_better: bool = False

    @property
    def worst(self) -> float:
        return float("-inf" if self.higher_is_better else "inf")

    def better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


@dataclass(frozen=True)
class Minibatch:
    """What one minibatch gave."""

    loss: float
    """Nats, at the scale of the gradients."""
    units: float
    """loss / units is nats per item."""
    items: int
    """Words or examples in it."""
    kl_weight: float
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """What the method reported of it, in nats; the loop adds it up."""


class Task(Protocol):
    """What a run learns: minibatches of data, and a measure of success. All that the training loop knows."""

    item: str
    """What nats are counted by, such as "word"."""
    items: int
    """Items of an epoch."""
    size: int
    """Size of the training data; a run can be resumed only with data of the same size."""
    hopeless: float
    """Nats per item from which no training recovers."""
    goal: Goal

    def __len__(self) -> int:
        """Minibatches of an epoch."""
        ...

    def begin_epoch(self, epoch: int) -> None: ...

    def step(self, method: Method, index: int, generator: Generator) -> Minibatch:
        """Add the gradients of minibatch `index` of this epoch to `.grad`."""
        ...

    def carried(self) -> dict[str, Tensor]:
        """What is carried from minibatch to minibatch, such as a recurrent state."""
        ...

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what a checkpoint had carried."""
        ...

    def training_metrics(self, nats: float) -> dict[str, Any]:
        """Nats per item as the metrics of a line."""
        ...

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        """Nats per item on the validation data, and the metrics of a line, the goal among them."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to be trained."""

    config: Settings
    """The settings, completed by what the data decide."""
    task: Task
    method: Method
    files: Mapping[str, str] = field(default_factory=dict)
    """The text files that a new run has beside the common ones, by name."""


@dataclass(frozen=True)
class CompareOptions:
    """What `compare` asks for; an experiment uses what applies to it."""

    samples: int = 0
    dynamic: bool = False
    lr: float = 0.1
    data: str | None = None


@dataclass(frozen=True)
class ReportOptions:
    """How much work goes into a report; an experiment uses what applies to it."""

    samples: int = 10
    words: int = 20_000
    other: str | None = None
    drop: float = 0.8
    streams: int = 20
    seed: int = 0
    data: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other: a table, and the same for machines."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """A part of a report: its anchor, its title and its HTML."""

    name: str
    title: str
    body: str


class Experiment(Protocol):
    """A kind of run: its settings, its data and model, and what is said of its results.

    The module that defines one loads nothing heavy: it imports torch inside its functions.
    """

    name: str
    """Stands in the runs' config.toml."""
    command: str
    """The command that trains: `bayesrnn COMMAND`."""
    summary: str
    """One line on that command."""
    run_name: str
    """How a run's folder is called by default, for the command's help."""
    config: type[Settings]

    def defaults(self, given: Mapping[str, str]) -> Settings:
        """The settings that the options not given shall have, by those that are."""
        ...

    def folder_name(self, config: Any) -> str:
        """The name of a run's folder, if none is given."""
        ...

    def prepare(self, config: Any, resumed: Run | None) -> Prepared:
        """Data, model and method, freshly initialised, for a new run or one that is resumed."""
        ...

    def progress_text(self, metrics: dict[str, Any]) -> str:
        """The metrics since the last line, beside the progress bar."""
        ...

    def epoch_line(self, metrics: dict[str, Any]) -> str:
        """The line that is printed after an epoch."""
        ...

    def goal_text(self, best: float) -> str:
        """The best value of the goal, in words."""
        ...

    def compare(
        self, runs: Sequence[Run], options: CompareOptions, progress: Progress
    ) -> Comparison: ...

    def report(
        self, runs: Sequence[Run], options: ReportOptions, progress: Progress
    ) -> list[Section]: ...


_MODULES: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Make an experiment known: `module` has it as `EXPERIMENT`, and is imported when it is needed."""
    if _MODULES.get(name, module) != module:
        raise ValueError(f"there is already an experiment {name!r}.")
    _MODULES[name] = module


def experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in _MODULES:
        raise ValueError(f"unknown experiment {name!r}; there are {', '.join(_MODULES)}.")
    return import_module(_MODULES[name]).EXPERIMENT


def experiments() -> list[Experiment]:
    """All, in the order in which they were registered."""
    return [experiment(name) for name in _MODULES]


def open_run(folder: Path, kind: Experiment | None = None) -> Run:
    """The run in a folder; ValueError if it is not of the experiment that is needed."""
    from bayesrnn.training.run import Run

    path = folder / "config.toml"
    if not path.is_file():
        what = "holds no run (it has no config.toml)" if folder.is_dir() else "no such run folder"
        raise ValueError(f"{folder}: {what}.")
    name, _ = read_toml(path)
    if name not in _MODULES:
        raise ValueError(f"{path} is of a run of task {name!r}, which this version does not know.")
    found = experiment(name)
    if kind is not None and found.name != kind.name:
        raise ValueError(
            f"{folder} is a run of `bayesrnn {found.command}`; this needs one of `bayesrnn {kind.command}`."
        )
    return Run(folder, found.config.from_toml(path))


def open_runs(folders: Sequence[Path]) -> tuple[Experiment, list[Run]]:
    """The runs in some folders, which must all be of one experiment."""
    if not folders:
        raise ValueError("name at least one run folder.")
    for folder in folders:
        if folder.is_file():
            raise ValueError(f"{folder} is a file; this needs the folder of a run.")
    runs = [open_run(folder) for folder in folders]
    first, *others = [experiment(run.config.TASK) for run in runs]
    for run, kind in zip(runs[1:], others, strict=True):
        if kind.name != first.name:
            raise ValueError(
                f"{runs[0].folder} is a run of `bayesrnn {first.command}`, {run.folder} of "
                f"`bayesrnn {kind.command}`; name runs of one kind."
            )
    return first, runs
