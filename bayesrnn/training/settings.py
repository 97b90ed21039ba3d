"""The settings shared by the runs of all experiments, and their file."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

from bayesrnn import methods
from bayesrnn.files import expanded

FORMAT = 1

LARGEST_FILE = 100_000
"""Bytes of a config.toml, which has a line for each setting."""

FILES = (
    "config.toml",
    "metrics.jsonl",
    "timing.jsonl",
    "weights.safetensors",
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
)
"""A folder that has one of these is, or was, a run."""

FIRST_TASK = "language"
"""The experiment of a config.toml that names none: the first one, before there were others."""


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of every run. Losses and KL are in nats."""

    data: str = ""
    """Data to train on."""
    method: str = "bbb"
    """Training method."""
    seed: int = 0
    """Random seed."""

    # The optimisation
    epochs: int = 10
    """Number of passes over the training data."""
    batch_size: int = 20
    """Number of examples, or of parallel streams of text, in a minibatch."""
    lr: float = 1.0
    """Learning rate, for a loss averaged over the minibatch and summed over time."""
    lr_decay: float = 1.0
    """Learning rate decay: a factor for each epoch after the first --lr-hold."""
    lr_hold: int = 1000
    """Number of epochs before the learning rate decays."""
    optimizer: str = "sgd"
    """Optimiser: sgd, or adam, under which sigma trains as fast as mu."""
    clip: float = 5.0
    """Gradient clipping norm, over all trained parameters."""
    accumulate: int = 1
    """Number of parts that a minibatch is computed in, one after the other, each with its own weight sample;
    more need less memory."""
    shared_noise: bool = False
    """Use the same weight sample in all parts of a minibatch: on every rank, and with --accumulate."""
    precision: str = "float32"
    """Precision of matrix products in training: float32, or bf16 (autocast; weights stay in float32)."""
    average: float = 0.0
    """Weight averaging for prediction: the share of the steps so far to average over; 0 for no averaging."""
    patience: int = 0
    """Epochs without a better validation result before training stops early; 0 to never stop early."""
    dropout: float = 0.0
    """Dropout rate, for the dropout methods."""

    # The posterior: bbb and sharpened
    prior: str = "mixture"
    """Prior over the weights: mixture, row-mixture, normal (with sigma1) or empirical."""
    pi: float = 0.25
    """Weight of the wide component in the prior's mixture."""
    log_sigma1: float = -1.0
    """Log standard deviation of the prior's wide component."""
    log_sigma2: float = -7.0
    """Log standard deviation of the prior's narrow component."""
    sigma_init: float = 0.02
    """Initial sigma of the posterior; 0 for the authors' rule, a fraction of the prior's."""
    kl_gradient: str = "expected"
    """Gradient of the KL: sampled, as in the paper, or expected, which is less noisy."""

    rho_lr: float = 1.0
    """Factor on the learning rate of rho (sigma = softplus(rho)); unless 1, its SGD steps are at most 0.1."""
    sigma_temperature: float = 1.0
    """Factor on the KL in sigma's gradient; 1 is the ELBO, other values are tempered and give no bound."""

    # Sharpening
    sigma0: float = 0.02
    """Standard deviation of the sharpened posterior."""
    kappa_init: float = 0.5
    """Initial step size of sharpening; 1 is the first-order optimum."""
    exact: bool = False
    """Differentiate through the sharpening gradient as well."""

    # The run that training started from: set by --from
    start: str = ""
    """Folder of the run that training started from."""
    start_sha256: str = ""
    """Digest of the weights that training started from."""

    TASK: ClassVar[str] = ""
    """The experiment these settings belong to."""
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "prior": ("mixture", "row-mixture", "normal", "empirical"),
        "kl_gradient": ("sampled", "expected"),
        "optimizer": ("sgd", "adam"),
        "precision": ("float32", "bf16"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "accumulate")
    ABOVE_0: ClassVar[tuple[str, ...]] = ("lr", "lr_decay", "clip", "sigma0", "rho_lr")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = ("sigma_init", "patience", "sigma_temperature")
    BETWEEN: ClassVar[dict[str, tuple[float, float]]] = {
        "seed": (-(2**62), 2**62),
        "epochs": (1, 10**6),
        "batch_size": (1, 10**6),
        "accumulate": (1, 10**6),
        "lr": (0, 1e38),
        "lr_decay": (0, 1000),
        "lr_hold": (-(10**9), 10**9),
        "clip": (0, math.inf),
        "patience": (0, 10**9),
        "log_sigma1": (-40, 40),
        "log_sigma2": (-40, 40),
        "sigma_init": (0, 1000),
        "rho_lr": (0, 1e6),
        "sigma_temperature": (0, 1e6),
        "sigma0": (0, 1000),
        "kappa_init": (-1000, 1000),
    }
    """Bounds of the numbers, beyond which no run is of use; those of shares are below."""
    BEFORE: ClassVar[dict[str, Any]] = {"kl_gradient": "sampled"}
    """Defaults for older config.toml files that lack a setting whose default has since changed."""
    CHANGEABLE: ClassVar[tuple[str, ...]] = ("data", "epochs", "patience")
    """What may change on resuming: a run may be extended, and its data may have moved."""
    RECORDED: ClassVar[tuple[str, ...]] = ("start", "start_sha256")
    """What is recorded of a run and is no option of its own."""
    SIZES: ClassVar[tuple[str, ...]] = ()
    """The settings that a run must share with the one it starts from, and takes from it by default."""
    PLACES: ClassVar[tuple[str, ...]] = ("data",)
    """The settings that may name a file or folder."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), str(field.type))
        for name, choices in {"method": methods.names(self.TASK), **self.CHOICES}.items():
            value = getattr(self, name)
            if not (name == "preset" and is_preset_file(value)):  # which may have gone since
                check_choice(name, value, choices)
        for name in self.AT_LEAST_1:
            check(name, getattr(self, name), getattr(self, name) >= 1, "must be at least 1")
        for name in self.ABOVE_0:
            check(name, getattr(self, name), getattr(self, name) > 0, "must be above 0")
        for name in self.AT_LEAST_0:
            check(name, getattr(self, name), getattr(self, name) >= 0, "must be 0 or more")
        for name, (low, high) in self.BETWEEN.items():
            value = getattr(self, name)
            check(name, value, low <= value <= high, f"must lie between {low:,} and {high:,}")
        check("dropout", self.dropout, 0 <= self.dropout < 1, "must be at least 0 and below 1")
        check("average", self.average, 0 <= self.average <= 1, "must lie between 0 and 1")
        averages = methods.method(self.method).averages_weights or self.average == 0
        rule = f"must be 0 for {self.method}, which averages predictions over its weight samples"
        check("average", self.average, averages, f"{rule} instead")
        check("pi", self.pi, 0 < self.pi < 1, "must lie strictly between 0 and 1")
        apart = self.prior != "row-mixture" or self.kl_gradient == "sampled"
        check("prior", self.prior, apart, "has no expected score: add --kl-gradient sampled")

    def learning_rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        try:
            return self.lr * self.lr_decay ** max(0, epoch + 1 - self.lr_hold)
        except OverflowError:
            return math.inf

    def least_weights(self, folder: Path) -> int:
        """A number of weights that the model of a run in this folder has at least; nothing is built."""
        return 0

    def to_toml(self) -> str:
        lines = [f"format = {FORMAT}"]
        if self.TASK != FIRST_TASK:
            lines.append(f'task = "{self.TASK}"')
        for name, value in asdict(self).items():
            # TOML writes floats as Python does, inf included, and strings, integers and booleans as JSON.
            text = (
                repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            )
            # JSON leaves this one control character as it is, and TOML does not allow it.
            lines.append(f"{name} = {text}".replace("\x7f", "\\u007f"))
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """The settings in the config.toml of a run of this experiment.

        Its sizes must be such that the weights fit into the files beside it: building a model allocates.
        """
        _, values = read_toml(path)
        for name in ("data", "method", "seed", "epochs"):  # which every version has written
            if name not in values:
                raise ValueError(f"{path} is damaged: it has no {name!r}. Restore it from a copy.")
        config = cls.from_values({**cls.BEFORE, **values}, str(path))
        sizes = [
            file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file()
        ]
        weights = config.least_weights(path.parent) if sizes else 0
        if sizes and 4 * weights > max(sizes):
            raise ValueError(
                f"{path} describes a model of {weights:,} weights or more, which the files beside it "
                "cannot hold: it is damaged, or of another run. Restore it from a copy."
            )
        return config

    @classmethod
    def from_preset(cls, package: str, name: str, method: str | None, **changes: Any) -> Self:
        """The settings in presets/NAME.toml of a package, or in a preset file, with its table for the method,
        and changes. The method is the one given, else the file's, else bbb."""
        if is_preset_file(name):
            values, source = cls._preset_file(expanded(name)), name
        else:
            check_choice("preset", name, cls.CHOICES["preset"])
            file = resources.files(package).joinpath("presets", f"{name}.toml")
            values, source = tomllib.loads(file.read_text("utf-8")), f"preset {name}"
        tables = {key: values.pop(key) for key in list(values) if isinstance(values[key], dict)}
        used: str = method or values.get("method", "bbb")
        check_choice("method", used, methods.names(cls.TASK))
        own = tables.get(used, {})  # a method without a table uses the common values
        return cls.from_values({**values, **own, **changes, "preset": name, "method": used}, source)

    @classmethod
    def _preset_file(cls, path: Path) -> dict[str, Any]:
        """The settings in a preset file, which may be the config.toml of a run too."""
        if not path.is_file():
            raise ValueError(f"{path}: no such preset file.")
        values = load_toml(path)
        values.pop("format", None)
        task = values.pop("task", cls.TASK)
        if task != cls.TASK:
            raise ValueError(f"{path} has the settings of another experiment, {shown(task)}.")
        if not isinstance(values.get("method", ""), str):
            raise ValueError(f"{path}: method = {shown(values['method'])} must be of type str.")
        tables = methods.names(cls.TASK)
        for name in [key for key, value in values.items() if isinstance(value, dict)]:
            if name not in tables:
                raise ValueError(
                    f"{path}: [{shown(name)}] is no method; choose from {', '.join(tables)}."
                )
        recorded = ("preset", *cls.RECORDED)
        return {name: value for name, value in values.items() if name not in recorded}

    @classmethod
    def from_values(cls, values: dict[str, Any], source: str) -> Self:
        """Settings from a table of values, with defaults for those missing; `source` is for messages."""
        known = {field.name: str(field.type) for field in fields(cls)}
        for name in values:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"{source}: unknown setting {name!r}{hint}")
        declared = {name: _as_declared(known[name], value) for name, value in values.items()}
        try:
            return cls(**declared)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None


def is_preset_file(preset: str) -> bool:
    """Whether a preset is a file of the user's, not a name."""
    return preset.endswith(".toml")


def preset_name(preset: str) -> str:
    """A preset's name, for the names of folders: that of a file is its stem."""
    return Path(preset).stem if is_preset_file(preset) else preset


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The experiment and the raw settings in a config.toml."""
    values = load_toml(path)
    version = values.pop("format", None)
    if type(version) is not int or version != FORMAT:
        raise ValueError(
            f"{path} has format {shown(version)}; this version of bayesrnn reads format {FORMAT}. "
            "Use the version that made the run."
        )
    task = values.pop("task", FIRST_TASK)
    if not isinstance(task, str):
        raise ValueError(f"{path}: task = {shown(task)} must be the name of an experiment.")
    return task, values


def load_toml(path: Path) -> dict[str, Any]:
    """The values in a small TOML file; ValueError, naming it, for what is none."""
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} is larger than {LARGEST_FILE:,} bytes; no run has such settings.")
    try:
        text = path.read_text(encoding="utf-8")
        # The time to parse a name such as a.a.a grows with the square of its parts.
        if any(line.count(".") > 300 for line in text.splitlines()):
            raise ValueError("a line has more than 300 dots")
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(
            f"{path} is too deep: a run's settings are names and values. Restore it from a copy."
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


def words_in(folder: Path) -> int:
    """The number of words in a run's vocabulary, one a line; 0 without one."""
    path = folder / "vocabulary.txt"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def check_resumable(began: Settings, asked: Settings) -> None:
    """Raise unless only settings that may change on resuming differ."""
    for field in fields(began):
        before, now = getattr(began, field.name), getattr(asked, field.name)
        if before != now and field.name not in began.CHANGEABLE:
            option = field.name.replace("_", "-")
            raise ValueError(
                f"--{option} {now} cannot be changed with --resume (the run began with {before}); "
                "start a new run."
            )


def check(name: str, value: object, holds: bool, rule: str) -> None:
    """Raise ValueError unless a setting's rule holds."""
    if not holds:
        raise ValueError(f"{name} = {shown(value)} {rule}.")


def shown(value: object) -> str:
    """A value for a message: short, and never deep."""
    if isinstance(value, bool | float | str | None):
        text = str(value)
        return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else f"an integer of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless a setting is one of its choices."""
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown {name} {value!r}; {hint}choose from {', '.join(choices)}.")


def _check_type(name: str, value: object, declared: str) -> None:
    expected = {"str": str, "int": int, "float": (int, float), "bool": bool}[declared]
    if not isinstance(value, expected) or (declared == "bool") != isinstance(value, bool):
        quoted = repr(value) if isinstance(value, str) and len(value) < 100 else shown(value)
        raise ValueError(f"{name} = {quoted} must be of type {declared}.")
    if isinstance(value, float) and (value != value or (name != "clip" and abs(value) == math.inf)):
        raise ValueError(f"{name} = {value} must be a finite number.")
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name} = {value!r} is no valid Unicode; rename the file.") from None


def _as_declared(kind: str, value: Any) -> Any:
    """Convert an integer to float where the setting is a float, if it is one that a float can hold."""
    if kind == "float" and type(value) is int and abs(value) < 10**300:
        return float(value)
    return value
