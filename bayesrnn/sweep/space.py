"""What a sweep searches: its TOML file, and every check of it. Neither torch nor optuna here.

experiment = "train"      # the training command whose settings these are; train by default
trials = 60               # not for a grid, which has as many as combinations
sampler = "tpe"           # tpe, random or grid
pruner = "median"         # median, halving or none
reports_per_epoch = 1     # validations per epoch that the pruner sees

[settings]                # any settings of the command, the same in every trial
epochs = 5

[space]
pi = [0.25, 0.5, 0.75]                       # choices
lr = { low = 0.3, high = 3.0, log = true }   # a range
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from importlib import import_module, resources
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias, cast, get_args

from bayesrnn.files import expanded
from bayesrnn.training.experiment import Experiment, experiments
from bayesrnn.training.settings import Settings, check_choice, load_toml, shown

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "halving", "none"]
Params: TypeAlias = Mapping[str, Any]
"""The values of a trial, by setting."""

MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Choices:
    """One of these values."""

    values: tuple[Any, ...]

    @property
    def examples(self) -> tuple[Any, ...]:
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two others; integers if both are."""

    low: float
    high: float
    log: bool = False
    """Whether equal ratios are equally likely, rather than equal differences."""

    @property
    def examples(self) -> tuple[Any, ...]:
        return (self.low, self.high)


@dataclass(frozen=True)
class Space:
    """A checked space: any trial of it has settings that the experiment takes."""

    name: str
    experiment: Experiment
    trials: int
    parameters: Mapping[str, Choices | Range]
    settings: Params = field(default_factory=dict)
    """What is the same in every trial."""
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    reports_per_epoch: int = 1

    def config(self, params: Params) -> Settings:
        """The settings of a trial."""
        given = {**self.settings, **params}
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        base = self.experiment.defaults(texts)
        return type(base).from_values({**asdict(base), **given}, self.name)

    def example(self) -> Params:
        """One point of the space."""
        return {name: parameter.examples[0] for name, parameter in self.parameters.items()}

    def cells(self, seed: int, count: int) -> Sequence[Params]:
        """What is fixed of each trial: all of a grid's, in an order that the seed decides; else nothing."""
        if self.sampler != "grid":
            return [{} for _ in range(count)]
        combined = product(*(parameter.examples for parameter in self.parameters.values()))
        cells = [dict(zip(self.parameters, values, strict=True)) for values in combined]
        Random(seed).shuffle(cells)
        return cells

    def as_json(self) -> dict[str, Any]:
        """What makes this space another than others, but for the number of trials and where its data are."""
        return {
            "experiment": self.experiment.command,
            "sampler": self.sampler,
            "pruner": self.pruner,
            "reports_per_epoch": self.reports_per_epoch,
            "settings": {k: v for k, v in self.settings.items() if k != "data"},
            "space": {
                name: list(p.values) if isinstance(p, Choices) else asdict(p)
                for name, p in self.parameters.items()
            },
        }


def read_space(place: str, *, data: str | None = None, trials: int | None = None) -> Space:
    """The space in a file, or the one of this name in the package; `data` and `trials` replace its own.

    ValueError, with one line that names what is wrong, unless every trial of it could be trained.
    """
    path = _find(place)
    table = load_toml(path)
    _check_names(table, [*_TOP, "settings", "space"], f"{path}: unknown name")
    for name, kind in _TOP.items():
        if name in table and type(table[name]) is not kind:
            raise ValueError(
                f"{path}: {name} = {shown(table[name])} must be of type {kind.__name__}."
            )
    for name in ("settings", "space"):
        if not isinstance(table.get(name, {}), dict):
            raise ValueError(f"{path}: [{name}] must be a table.")
    try:
        space = _space(path.stem, table, data=data, trials=trials)
        _check_settings(space)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix(f'{path.stem}: ')}") from None
    return space


_TOP = {"experiment": str, "trials": int, "sampler": str, "pruner": str, "reports_per_epoch": int}
"""The names at the top of the file, beside its tables, and their types."""


def shipped() -> dict[str, Path]:
    """The spaces in the package, by name: spaces/NAME.toml beside each experiment."""
    found = {}
    for experiment in experiments():
        package = import_module(type(experiment).__module__).__package__
        folder = resources.files(package) / "spaces" if package else None
        if isinstance(folder, Path):
            found |= {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return found


def _find(place: str) -> Path:
    path = expanded(place)
    if path.is_file():
        return path
    if path.is_dir():
        raise ValueError(f"{place} is a folder; give the TOML file of a space.")
    spaces = shipped()
    if place in spaces:
        return spaces[place]
    if path.suffix == ".toml" or len(path.parts) != 1:
        raise ValueError(f"{place}: no such file.")
    near = get_close_matches(place, spaces, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"there is no space {place!r}; {hint}give a TOML file, or choose from {', '.join(spaces)}."
    )


def _space(name: str, table: dict[str, Any], *, data: str | None, trials: int | None) -> Space:
    experiment = _experiment(table.get("experiment", "train"))
    sampler, pruner = table.get("sampler", "tpe"), table.get("pruner", "median")
    check_choice("sampler", sampler, get_args(Sampler))
    check_choice("pruner", pruner, get_args(Pruner))
    reports = table.get("reports_per_epoch", 1)
    if not 1 <= reports <= 1000:
        raise ValueError(f"reports_per_epoch = {shown(reports)} must lie between 1 and 1,000.")
    declared = _settings_of(experiment)
    settings, searched = dict(table.get("settings", {})), table.get("space", {})
    _check_names(settings, declared, "[settings]: unknown setting")
    _check_names(searched, declared, "[space]: unknown setting")
    if not searched:
        raise ValueError("[space] has no settings to search.")
    if data is not None:
        settings["data"] = data
    for both in settings.keys() & searched.keys():
        raise ValueError(f"{both!r} is in [settings] and in [space]; leave it out of one.")
    parameters = {key: _parameter(key, value, declared[key]) for key, value in searched.items()}
    space = Space(
        name,
        experiment,
        0,
        parameters,
        settings,
        cast("Sampler", sampler),
        cast("Pruner", pruner),
        reports,
    )
    return replace(space, trials=_number_of_trials(space, table.get("trials"), trials))


def _experiment(command: str) -> Experiment:
    commands = {experiment.command: experiment for experiment in experiments()}
    check_choice("experiment", command, tuple(commands))
    return commands[command]


def _settings_of(experiment: Experiment) -> dict[str, str]:
    """The types of an experiment's settings, by name, without what is recorded and no option."""
    known = fields(experiment.config)
    return {f.name: str(f.type) for f in known if f.name not in experiment.config.RECORDED}


def _check_names(table: Mapping[str, Any], known: Mapping[str, Any] | list[str], what: str) -> None:
    for name in table:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ValueError(
                f"{what} {shown(name)!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
            )


def _parameter(name: str, value: Any, declared: str) -> Choices | Range:
    """A list or a range; numbers are floats where the setting is one."""
    convert = float if declared == "float" else lambda number: number
    if isinstance(value, list):
        simple = [isinstance(item, str | int | float) for item in value]
        if not value or not all(simple):
            raise ValueError(f"{name} must be a list of one value or more, or a range.")
        choices = tuple(convert(v) if type(v) is int and abs(v) < 1e300 else v for v in value)
        if len({(type(item), item) for item in choices}) < len(choices):
            raise ValueError(f"{name} has a value twice.")
        return Choices(choices)
    if not isinstance(value, dict):
        raise ValueError(
            f"{name} = {shown(value)} must be a list of values, or a range such as "
            "{ low = 0.1, high = 1.0 }; a fixed value belongs under [settings]."
        )
    _check_names(value, ["low", "high", "log"], f"{name}: unknown name")
    for bound in ("low", "high"):
        _check_bound(f"{name}.{bound}", value.get(bound), declared)
    low, high, log = convert(value["low"]), convert(value["high"]), value.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"{name}.log = {shown(log)} must be true or false.")
    if not low < high:
        raise ValueError(f"{name}: low = {low} must be below high = {high}.")
    if log and not low > 0:
        raise ValueError(f"{name}: low = {low} must be above 0 for log = true.")
    return Range(low, high, log)


def _check_bound(name: str, value: Any, declared: str) -> None:
    if value is None:
        raise ValueError(f"{name} is missing.")
    if declared not in ("int", "float"):
        raise ValueError(f"{name}: this setting is of type {declared}; give a list of values.")
    kinds = (int,) if declared == "int" else (int, float)
    if type(value) not in kinds or not abs(value) < 1e300 or math.isnan(value):
        raise ValueError(f"{name} = {shown(value)} must be a finite number of type {declared}.")


def _number_of_trials(space: Space, declared: int | None, asked: int | None) -> int:
    if space.sampler == "grid":
        return _number_of_cells(space, declared, asked)
    count = declared if asked is None else asked
    if count is None:
        raise ValueError("say how many trials: trials = 60 in the file, or --trials 60.")
    if not 1 <= count <= MOST_TRIALS:
        raise ValueError(f"trials = {shown(count)} must lie between 1 and {MOST_TRIALS:,}.")
    return count


def _number_of_cells(space: Space, declared: int | None, asked: int | None) -> int:
    for name, parameter in space.parameters.items():
        if isinstance(parameter, Range):
            raise ValueError(f"{name} is a range; a grid needs lists.")
    count = math.prod(len(parameter.examples) for parameter in space.parameters.values())
    if not (declared is None and asked is None):
        raise ValueError(f"a grid has as many trials as combinations, {count}; leave out trials.")
    if count > MOST_TRIALS:
        raise ValueError(f"the grid has {count:,} combinations; {MOST_TRIALS:,} are the most.")
    return count


def _check_settings(space: Space) -> None:
    """Make the settings of every choice and bound, each beside the first values of the others."""
    for params in _extremes(space):
        space.config(params)


def _extremes(space: Space) -> Iterator[Params]:
    first = space.example()
    yield first
    for name, parameter in space.parameters.items():
        for value in parameter.examples[1:]:
            yield {**first, name: value}
