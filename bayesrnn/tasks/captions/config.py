"""The settings of a caption run, and its presets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bayesrnn.training.settings import Settings, words_in

PRESETS = ("shapes", "photos", "im2txt")
SHAPES = "shapes"
"""The data set, and the encoder, that need no download."""


@dataclass(frozen=True)
class CaptionsConfig(Settings):
    """The hyper-parameters of a caption run."""

    data: str = SHAPES
    """Images to train on: shapes, which are drawn, or a folder in MSCOCO's caption format."""
    method: str = "bbb"
    """Training method: lstm, dropout, bbb or sharpened."""
    preset: str = SHAPES
    """Preset with the other options' defaults: shapes, photos, im2txt (Show and Tell), or a .toml file."""
    encoder: str = ""
    """Image network: efficientnet-lite0, shapes, or timm:MODEL[=FILE]; by default what suits the data."""
    features: str = ""
    """File of features, by `bayesrnn captions features`; by default they are computed and cached."""
    encoder_key: str = ""
    """Name and digest of the image network, to tell features apart; empty to take it from the features."""
    feature_size: int = 0
    """Number of features of an image; 0 to take it from the features."""

    # The model
    hidden: int = 512
    """Number of units in the LSTM."""
    embedding: int = 512
    """Number of units in the embedding of words and of the image."""
    min_count: int = 4
    """Number of times a word must occur in the training captions to be in the vocabulary."""
    init: str = "fan-in"
    """Initial weights: uniform within --init-scale of 0, or fan-in (the authors' script)."""
    init_scale: float = 0.08
    """Largest absolute value of uniform initial weights."""

    TASK: ClassVar[str] = "captions"
    SIZES: ClassVar[tuple[str, ...]] = (
        *("encoder", "encoder_key", "feature_size"),
        *("hidden", "embedding", "min_count"),
    )
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **Settings.CHOICES,
        "preset": PRESETS,
        "init": ("uniform", "fan-in"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (
        *Settings.AT_LEAST_1,
        *("hidden", "embedding", "min_count"),
    )
    ABOVE_0: ClassVar[tuple[str, ...]] = (*Settings.ABOVE_0, "init_scale")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_0, "feature_size")
    BETWEEN: ClassVar[dict[str, tuple[float, float]]] = {
        **Settings.BETWEEN,
        "feature_size": (0, 10**6),
        "hidden": (1, 2**16),
        "embedding": (1, 2**16),
        "min_count": (1, 10**9),
        "init_scale": (0, 1000),
    }
    CHANGEABLE: ClassVar[tuple[str, ...]] = (*Settings.CHANGEABLE, "features", "encoder")
    PLACES: ClassVar[tuple[str, ...]] = (*Settings.PLACES, "features")

    def least_weights(self, folder: Path) -> int:
        recurrent = 4 * self.hidden * (self.embedding + self.hidden)
        words = words_in(folder) * (self.embedding + self.hidden)
        return recurrent + words + self.feature_size * self.embedding


def preset(name: str, method: str | None, **changes: Any) -> CaptionsConfig:
    """A preset's settings for a method, by default its own, with changes."""
    return CaptionsConfig.from_preset("bayesrnn.tasks.captions", name, method, **changes)
