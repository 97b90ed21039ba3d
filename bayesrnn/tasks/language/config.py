"""The settings of a language-model run, and their presets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bayesrnn import methods
from bayesrnn.training.settings import Settings, check, words_in

PRESETS = ("tiny", "small", "medium", "large")


@dataclass(frozen=True)
class LanguageModelConfig(Settings):
    """The hyper-parameters of a language-model run."""

    data: str = "pydocs"
    """Text to train on: pydocs, ptb, wikitext-2, or a folder or file."""
    method: str = "bbb"
    """Training method: lstm, dropout, variational-dropout, sgld, bbb or sharpened."""
    vocabulary: int = 0
    """Maximum number of words in the vocabulary; 0 for all (for pydocs, 2500)."""
    train_words: int = 0
    """Number of words of the training text to use, from its beginning; 0 for all."""
    preset: str = "tiny"
    """Preset with the defaults of all other options: tiny, small, medium, large, or a .toml file."""

    # The model
    hidden: int = 100
    """Number of units in each LSTM layer and in the embedding."""
    layers: int = 2
    """Number of LSTM layers."""
    tied: bool = False
    """Tie the weights of the embedding and the softmax."""
    unroll: int = 35
    """Number of time steps of truncated backpropagation."""
    init: str = "uniform"
    """Initial weights: uniform within --init-scale of 0, or fan-in (the authors' script)."""
    init_scale: float = 0.1
    """Largest absolute value of uniform initial weights."""

    # The optimisation
    rare_words: float = 0.0
    """Larger learning rates for rare words, in the embedding and the softmax: --lr x (count of the commonest
    word / count of the word) to this power; 0 for one rate."""

    # SGLD
    sgld_prior_sigma: float = 1.0
    """Standard deviation of the normal prior of sgld."""
    sgld_samples: int = 10
    """Number of weight samples, one per epoch, that sgld keeps and averages over."""

    TASK: ClassVar[str] = "language"
    SIZES: ClassVar[tuple[str, ...]] = ("vocabulary", "hidden", "layers", "tied")
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **Settings.CHOICES,
        "preset": PRESETS,
        "init": ("uniform", "fan-in"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (
        *Settings.AT_LEAST_1,
        *("hidden", "layers", "unroll", "sgld_samples"),
    )
    ABOVE_0: ClassVar[tuple[str, ...]] = (*Settings.ABOVE_0, "init_scale", "sgld_prior_sigma")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_0, "vocabulary", "train_words")

    BETWEEN: ClassVar[dict[str, tuple[float, float]]] = {
        **Settings.BETWEEN,
        "vocabulary": (0, 10**9),
        "train_words": (0, 10**12),
        "hidden": (1, 2**16),
        "layers": (1, 1000),
        "unroll": (1, 10**5),
        "init_scale": (0, 1000),
        "rare_words": (0, 1),
        "sgld_prior_sigma": (0, 1e6),
        "sgld_samples": (1, 10**4),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.vocabulary == 0 or self.vocabulary >= 3
        check("vocabulary", self.vocabulary, enough, "must be 0, for all words, or at least 3")
        uniform = self.rare_words == 0
        one_rate = methods.method(self.method).one_rate
        rule = f"must be 0 for {self.method}, whose weights all have one learning rate"
        check("rare_words", self.rare_words, uniform or not one_rate, rule)
        sgd = self.optimizer == "sgd"
        check("rare_words", self.rare_words, uniform or sgd, "must be 0 for --optimizer adam")

    def least_weights(self, folder: Path) -> int:
        recurrent = self.layers * (8 * self.hidden**2 + 8 * self.hidden)
        return recurrent + (1 if self.tied else 2) * self.hidden * words_in(folder)


def preset(name: str, method: str | None, **changes: Any) -> LanguageModelConfig:
    """A preset's settings for a method, by default its own, with changes."""
    return LanguageModelConfig.from_preset("bayesrnn.tasks.language", name, method, **changes)
