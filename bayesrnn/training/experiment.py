"""The interface between the experiments and what they share: the loop, run folders, report and commands.

The loop and the commands know an experiment only by its name and by these protocols. Each experiment is
a folder in `bayesrnn.tasks`. This module does not import torch, so that `--help` is fast.
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

PRETRAINED = Path("pretrained")
"""The name of the model in the package: a posterior trained on pydocs by `make pretrained`."""

Progress = Callable[[str], None]
"""Called with a description of the work in progress."""


@dataclass(frozen=True)
class Goal:
    """The validation metric that selects the best epoch."""

    metric: str
    higher_is_better: bool = False

    @property
    def worst(self) -> float:
        return float("-inf" if self.higher_is_better else "inf")

    def better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


@dataclass(frozen=True)
class Part:
    """One of the parts that every minibatch is divided into: over ranks, and one after the other.

    The gradient of a minibatch is the sum of those of its parts. So a part weighs each of its nats as the
    minibatch does, and pays its share of the minibatch's KL weight.
    """

    number: int = 0
    of: int = 1

    @property
    def kl_share(self) -> float:
        return 1 / self.of

    def rows(self, size: int) -> slice:
        """The streams or examples of this part, of a minibatch that has `size` of them."""
        return slice(size * self.number // self.of, size * (self.number + 1) // self.of)


@dataclass(frozen=True)
class Minibatch:
    """The result of one part of a minibatch; losses, units, items and metrics add up over the parts."""

    loss: Tensor
    """What the part adds to the loss of the minibatch, in nats; a tensor, so that no GPU need be awaited."""
    units: float
    """loss / units is nats per item."""
    items: int
    """Number of words or examples."""
    kl_weight: float
    """That of the whole minibatch."""
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Metrics reported by the method, in nats; the loop sums them over the epoch."""


class Task(Protocol):
    """What a run learns: minibatches and a validation metric. The training loop knows nothing else of it."""

    item: str
    """The unit of the data, such as "word": metrics are nats per item."""
    items: int
    """Number of items in an epoch."""
    size: int
    """Size of the training data; a run can be resumed only with data of the same size."""
    hopeless: float
    """Nats per item above which training counts as diverged."""
    goal: Goal
    rows: int
    """Number of streams or examples in a minibatch: it can have no more parts."""

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""
        ...

    def begin_epoch(self, epoch: int) -> None: ...

    def step(
        self, method: Method, index: int, part: Part, generator: Generator | None
    ) -> Minibatch:
        """Add the gradients of a part of minibatch `index` of this epoch to `.grad`."""
        ...

    def rates(self) -> dict[str, Tensor]:
        """Factors on the learning rate, by the name of a weight, whose shape they broadcast to."""
        ...

    def carried(self) -> dict[str, Tensor]:
        """The tensors carried from minibatch to minibatch, such as a recurrent state: of the parts that were
        computed here, joined along the second axis."""
        ...

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the carried tensors of all parts from a checkpoint."""
        ...

    def training_metrics(self, nats: float) -> dict[str, Any]:
        """The training metrics of a line, from the nats per item."""
        ...

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        """Nats per item on the validation data, and the validation metrics, which include the goal."""
        ...


@dataclass(frozen=True)
class Prepared:
    """Everything needed to train a run."""

    config: Settings
    """The settings, with those that depend on the data filled in."""
    task: Task
    method: Method
    files: Mapping[str, str] = field(default_factory=dict)
    """Additional text files of a new run folder, by name."""
    notes: Sequence[str] = ()
    """What the user should know of the data, one line each, such as files that were left out."""
    data: str | None = None
    """A digest of the training data, which a resumed run must have again."""
    take_over: Callable[[Run], None] | None = None
    """Copies the weights of another run of the experiment into the method; None if no run can start so."""
    summary: str = ""
    """The data in a few words, for the first line of the output; by default their name and size."""


@dataclass(frozen=True)
class CompareOptions:
    """The options of `bayesrnn compare`; an experiment uses those that apply to it."""

    samples: int = 0
    dynamic: bool = False
    lr: float = 0.1
    rare_words: float = 0.0
    decay: float = 0.0
    data: str | None = None


@dataclass(frozen=True)
class ReportOptions:
    """The options of `bayesrnn report`; an experiment uses those that apply to it."""

    samples: int = 10
    words: int = 20_000
    other: str | None = None
    drop: float = 0.8
    streams: int = 20
    seed: int = 0
    data: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A table that compares runs, and the same rows as JSON."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    rows: Sequence[dict[str, Any]]
    notes: Sequence[str] = ()
    """What the reader should know of the data, one line each."""


@dataclass(frozen=True)
class Section:
    """A section of a report: its anchor, its title and its HTML."""

    name: str
    title: str
    body: str


class Experiment(Protocol):
    """A kind of run: its settings, data and model, and how its results are presented.

    The module that defines one imports torch only inside functions, so that `--help` is fast.
    """

    name: str
    """The task named in a run's config.toml."""
    command: str
    """The training command: `bayesrnn COMMAND`."""
    summary: str
    """One line of help for that command."""
    run_name: str
    """The default run folder, as the command's help shows it."""
    config: type[Settings]

    def defaults(self, given: Mapping[str, str]) -> Settings:
        """The default settings, given the options on the command line."""
        ...

    def folder_name(self, config: Any) -> str:
        """The default name of a run's folder."""
        ...

    def prepare(self, config: Any, before: Run | None) -> Prepared:
        """Load the data and build the model and method.

        `before` is the run that is resumed, or whose weights a new one starts from: its own files, such as a
        vocabulary, are those of the new run too.
        """
        ...

    def progress_text(self, metrics: dict[str, Any]) -> str:
        """The text beside the progress bar, from the recent training metrics."""
        ...

    def epoch_line(self, metrics: dict[str, Any]) -> str:
        """The line printed after an epoch."""
        ...

    def goal_text(self, best: float) -> str:
        """The best value of the goal, as text."""
        ...

    def compare(
        self, runs: Sequence[Run], options: CompareOptions, progress: Progress
    ) -> Comparison: ...

    def report(
        self, runs: Sequence[Run], options: ReportOptions, progress: Progress
    ) -> list[Section]: ...


def kl_text(metrics: Mapping[str, Any], item: str) -> str:
    """The KL and what sharpening costs, for the line of an epoch; nothing for a method without them."""
    kl, sharpening = metrics[f"kl_per_{item}"], metrics[f"kl_theta_per_{item}"]
    text = "" if kl is None else f"  KL {kl:.3f} nats/{item}"
    return text + (f"  sharpening {sharpening:.4f} nats/{item}" if sharpening else "")


_MODULES: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Register an experiment: `module` defines it as `EXPERIMENT` and is imported on first use."""
    if _MODULES.get(name, module) != module:
        raise ValueError(f"there is already an experiment {name!r}.")
    _MODULES[name] = module


def experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in _MODULES:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(_MODULES)}.")
    return import_module(_MODULES[name]).EXPERIMENT


def experiments() -> list[Experiment]:
    """All experiments, in order of registration."""
    return [experiment(name) for name in _MODULES]


def is_pretrained(path: Path) -> bool:
    """Whether a path names the model in the package; a file or folder of that name comes first."""
    return path == PRETRAINED and not path.exists()


def no_folder(path: Path) -> ValueError:
    """What to raise where a run folder is needed and the model in the package was given."""
    return ValueError(
        f"{path} is a model in the package without a run folder; give it to evaluate, generate, score, "
        "uncertainty, calibration or inspect."
    )


def open_run(folder: Path, kind: Experiment | None = None) -> Run:
    """Open the run in a folder; ValueError if it belongs to another experiment than `kind`."""
    from bayesrnn.training.run import Run

    return Run(folder, read_settings(folder, kind))


def read_settings(folder: Path, kind: Experiment | None = None) -> Settings:
    """The settings of the run in a folder; ValueError if it belongs to another experiment than `kind`."""
    if is_pretrained(folder):
        raise no_folder(folder)
    path = folder / "config.toml"
    if not path.is_file():
        what = "not a run (it has no config.toml)" if folder.is_dir() else "no such run folder"
        raise ValueError(f"{folder}: {what}.")
    name, _ = read_toml(path)
    if name not in _MODULES:
        raise ValueError(f"{path}: this version of bayesrnn does not know the task {name!r}.")
    found = experiment(name)
    if kind is not None and found.name != kind.name:
        raise ValueError(
            f"{folder} is a run of `bayesrnn {found.command}`; this needs one of `bayesrnn {kind.command}`."
        )
    return found.config.from_toml(path)


def open_runs(folders: Sequence[Path]) -> tuple[Experiment, list[Run]]:
    """Open the runs in several folders, which must all belong to one experiment."""
    if not folders:
        raise ValueError("give at least one run folder.")
    for folder in folders:
        if folder.is_file():
            raise ValueError(f"{folder} is a file; this needs the folder of a run.")
    runs = [open_run(folder) for folder in folders]
    first, *others = [experiment(run.config.TASK) for run in runs]
    for run, kind in zip(runs[1:], others, strict=True):
        if kind.name != first.name:
            raise ValueError(
                f"{runs[0].folder} is a run of `bayesrnn {first.command}`, {run.folder} of "
                f"`bayesrnn {kind.command}`; give runs of one experiment."
            )
    return first, runs
