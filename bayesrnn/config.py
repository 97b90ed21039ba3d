"""Everything that decides a run: read from a preset, changed on the command line, stored with the run."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

Method = Literal["lstm", "dropout", "variational-dropout", "sgld", "bbb", "sharpened"]
Preset = Literal["tiny", "small", "medium", "large"]
METHODS: tuple[str, ...] = get_args(Method)
PRESETS: tuple[str, ...] = get_args(Preset)
FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters that runs of every kind have. Everything is in nats."""

    data: str = ""
    """Where the data are."""
    method: str = "bbb"
    """How the weights are learnt."""
    seed: int = 0
    """Of the weights, the noise and the dropout masks."""

    # The optimisation
    epochs: int = 10
    """Passes over the training data."""
    batch_size: int = 20
    """Examples, or parallel streams of text, in a minibatch, N."""
    lr: float = 1.0
    """Learning rate, of nats averaged over the minibatch and summed over time."""
    lr_decay: float = 1.0
    """Factor on the learning rate each epoch after lr_hold."""
    lr_hold: int = 1000
    """Epochs at the full learning rate."""
    optimizer: str = "sgd"
    """sgd, or adam, which moves sigma as fast as mu."""
    clip: float = 5.0
    """Longest gradient, over all trained parameters."""
    average: float = 0.0
    """Predict with the average of the weights over this share of the steps so far; 0 for the last weights."""
    patience: int = 0
    """Stop after so many epochs without a better result on the validation data; 0 for never."""
    dropout: float = 0.0
    """Share of units dropped, for the dropout methods."""

    # The posterior: bbb and sharpened
    prior: str = "mixture"
    """mixture, row-mixture, normal (sigma1) or empirical."""
    pi: float = 0.25
    """Share of the wide component."""
    log_sigma1: float = -1.0
    """Log standard deviation of the wide component."""
    log_sigma2: float = -7.0
    """Log standard deviation of the narrow component."""
    sigma_init: float = 0.02
    """Where sigma starts; 0 for the authors' rule, a share of the prior's width."""
    kl_gradient: str = "expected"
    """The KL's gradient: sampled at each draw, as in the paper, or expected, with less noise."""

    rho_lr: float = 1.0
    """Factor on rho's learning rate; above 1 sigma moves, in steps of at most a tenth of itself."""
    sigma_temperature: float = 1.0
    """Factor on the KL in sigma's gradient; 1 is the ELBO, anything else is no bound."""

    # Sharpening
    sigma0: float = 0.02
    """Standard deviation of theta around its sharpened centre."""
    kappa_init: float = 0.5
    """Where the learnt step starts; 1 is the first-order optimum."""
    exact: bool = False
    """Differentiate through the sharpening gradient too."""

    TASK: ClassVar[str] = ""
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "prior": ("mixture", "row-mixture", "normal", "empirical"),
        "kl_gradient": ("sampled", "expected"),
        "optimizer": ("sgd", "adam"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = ("epochs", "batch_size")
    ABOVE_0: ClassVar[tuple[str, ...]] = ("lr", "lr_decay", "clip", "sigma0", "rho_lr")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = ("sigma_init", "patience", "sigma_temperature")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = {"str": str, "int": int, "float": (int, float), "bool": bool}[
                str(field.type)
            ]
            right = isinstance(value, expected) and (field.type == "bool") == isinstance(
                value, bool
            )
            if not right:
                raise ValueError(f"{field.name} = {value!r} must be of type {field.type}.")
        for name, choices in self.CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in self.AT_LEAST_1:
            _check(name, getattr(self, name), getattr(self, name) >= 1, "must be at least 1")
        for name in self.ABOVE_0:
            _check(name, getattr(self, name), getattr(self, name) > 0, "must be above 0")
        for name in self.AT_LEAST_0:
            _check(name, getattr(self, name), getattr(self, name) >= 0, "must be 0 or more")
        _check("dropout", self.dropout, 0 <= self.dropout < 1, "must be at least 0 and below 1")
        _check("average", self.average, 0 <= self.average <= 1, "must lie between 0 and 1")
        _check("pi", self.pi, 0 < self.pi < 1, "must lie strictly between 0 and 1")
        apart = self.prior != "row-mixture" or self.kl_gradient == "sampled"
        _check("prior", self.prior, apart, "ties weights together: add --kl-gradient sampled")

    def learning_rate(self, epoch: int) -> float:
        """The rate in an epoch, the first being 0."""
        return self.lr * self.lr_decay ** max(0, epoch + 1 - self.lr_hold)

    def to_toml(self) -> str:
        lines = [f"format = {FORMAT}"]
        if self.TASK:
            lines.append(f'task = "{self.TASK}"')
        for name, value in asdict(self).items():
            # Python's floats, also inf, and JSON's strings, whole numbers and booleans are TOML's.
            text = (
                repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            )
            lines.append(f"{name} = {text}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(path: Path) -> Settings:
        """The settings that a file holds, of whichever kind they are."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no valid TOML: {error}") from None
        version = values.pop("format", None)
        if version != FORMAT:
            raise ValueError(
                f"{path} is of format {version}; this version of bayesrnn reads format {FORMAT}. "
                "Use the version that made the run."
            )
        values.setdefault("kl_gradient", "sampled")  # the only one when runs did not say
        task = values.pop("task", "")
        if task == MnistConfig.TASK:
            values.setdefault("white", 1.0)  # as above
        kinds: dict[str, type[Settings]] = {kind.TASK: kind for kind in (Config, MnistConfig)}
        if task not in kinds:
            raise ValueError(
                f"{path} is of a run of task {task!r}, which this version does not know."
            )
        return kinds[task].from_values(values, str(path))

    @classmethod
    def from_values(cls, values: dict[str, Any], source: str) -> Self:
        """A config from a table that `source` holds; what it does not say is as by default."""
        known = {field.name: str(field.type) for field in fields(cls)}
        for name in values:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"{source}: unknown setting {name!r}{hint}")
        return cls(**{name: _as_declared(known[name], value) for name, value in values.items()})


@dataclass(frozen=True)
class Config(Settings):
    """The hyper-parameters of a language-model run."""

    data: str = "pydocs"
    """pydocs, ptb, wikitext-2, or a folder or file of text."""
    method: str = "bbb"
    """lstm, dropout, variational-dropout, sgld, bbb or sharpened."""
    vocabulary: int = 0
    """Most words to know; 0 for all (pydocs: 5000)."""
    preset: str = "tiny"
    """tiny, small, medium or large: the other values start from it."""

    # The model
    hidden: int = 100
    """Units of each LSTM layer and of the embedding."""
    layers: int = 2
    """LSTM layers."""
    tied: bool = False
    """Share the weights of embedding and softmax."""
    unroll: int = 35
    """Steps of truncated backpropagation, T."""
    init: str = "uniform"
    """Where the weights start: uniform in +-init_scale, or fan-in (the authors' script)."""
    init_scale: float = 0.1
    """Bound of the uniform start."""

    # SGLD
    sgld_prior_sigma: float = 1.0
    """Standard deviation of the normal prior."""
    sgld_samples: int = 10
    """Weight samples to average over: those of the latest epochs."""

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **Settings.CHOICES,
        "preset": PRESETS,
        "method": METHODS,
        "init": ("uniform", "fan-in"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (
        *Settings.AT_LEAST_1,
        *("hidden", "layers", "unroll", "sgld_samples"),
    )
    ABOVE_0: ClassVar[tuple[str, ...]] = (*Settings.ABOVE_0, "init_scale", "sgld_prior_sigma")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_0, "vocabulary")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(
            "average",
            self.average,
            self.method != "sgld" or self.average == 0,
            "must be 0 for sgld, which averages predictions over its weight samples instead",
        )
        enough = self.vocabulary == 0 or self.vocabulary >= 3
        _check("vocabulary", self.vocabulary, enough, "must be 0, for all words, or at least 3")


@dataclass(frozen=True)
class MnistConfig(Settings):
    """The hyper-parameters of a classifier of digits."""

    data: str = "digits"
    """digits, scikit-learn's 8x8 pictures, or a folder with MNIST's IDX files."""
    method: str = "bbb"
    """sgd, dropout, bbb or sharpened."""
    network: str = "perceptron"
    """perceptron, or lenet: convolutions."""
    hidden: int = 400
    """Units of each hidden layer."""
    layers: int = 2
    """Hidden layers of the perceptron."""
    pixels: int = 0
    """Height and width of the pictures; 0 for what the data have."""
    white: float = 2.0
    """The brightest pixel, the darkest being 0: about that of Blundell et al., who divide by 126."""
    valid: int = 0
    """Training examples held out for validation; 0 for a sixth of them."""
    kl_weighting: str = "geometric"
    """How minibatches share the KL: uniform, or geometric (Blundell et al.)."""
    epochs: int = 80
    batch_size: int = 256
    lr: float = 0.3
    lr_decay: float = 0.97
    lr_hold: int = 1
    clip: float = 1000.0
    dropout: float = 0.5
    pi: float = 0.5
    log_sigma1: float = 0.0
    log_sigma2: float = -6.0
    sigma_init: float = 0.01
    sigma0: float = 0.005
    kappa_init: float = 1.0

    @classmethod
    def for_method(cls, method: str) -> MnistConfig:
        """The defaults for a method: a posterior needs Adam, or its sigma would hardly move."""
        _check_choice("method", method, cls.CHOICES["method"])
        if method in ("bbb", "sharpened"):
            return cls(method=method, optimizer="adam", lr=6e-3, lr_decay=0.94)
        return cls(method=method)

    TASK: ClassVar[str] = "mnist"
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **Settings.CHOICES,
        "method": ("sgd", "dropout", "bbb", "sharpened"),
        "network": ("perceptron", "lenet"),
        "kl_weighting": ("uniform", "geometric"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_1, "hidden", "layers")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_0, "valid", "pixels")
    ABOVE_0: ClassVar[tuple[str, ...]] = (*Settings.ABOVE_0, "white")


def preset(name: str, method: str, **changes: Any) -> Config:
    """A preset's values for a method, with changes on top."""
    _check_choice("preset", name, PRESETS)
    _check_choice("method", method, METHODS)
    text = resources.files("bayesrnn").joinpath("presets", f"{name}.toml").read_text("utf-8")
    values = tomllib.loads(text)
    own = {m: values.pop(m, {}) for m in METHODS}
    return Config.from_values(
        {**values, **own[method], **changes, "preset": name, "method": method}, f"preset {name}"
    )


def _as_declared(kind: str, value: Any) -> Any:
    """A whole number where a real one is meant becomes one."""
    return float(value) if kind == "float" and type(value) is int else value


def _check(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value} {rule}.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown {name} {value!r}; {hint}there are {', '.join(choices)}.")
