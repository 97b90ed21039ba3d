"""Trained captioners, from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.methods import Member, Method
from bayesrnn.tasks.captions.config import CaptionsConfig
from bayesrnn.tasks.captions.data.captioned import Captioned, CaptionedImages
from bayesrnn.tasks.captions.data.encoded import Encoded, encode
from bayesrnn.tasks.captions.encoders.encoder import Encoder, load_encoder
from bayesrnn.tasks.captions.evaluation.decoding import Caption, decode
from bayesrnn.tasks.captions.evaluation.words import CaptionBeliefs, word_beliefs
from bayesrnn.tasks.captions.sources import Loaded, load
from bayesrnn.tasks.captions.task import build_method
from bayesrnn.training.experiment import experiment, open_run
from bayesrnn.training.run import Run, labels

VOCABULARY = "vocabulary.txt"
"""A run's vocabulary: one word per line, in token order."""


@dataclass(frozen=True)
class Split:
    """A split as a model is evaluated on it."""

    images: CaptionedImages
    entries: tuple[Captioned, ...]
    features: Tensor  # (images, F), in the order of the entries
    notes: tuple[str, ...]

    @property
    def references(self) -> dict[str, tuple[str, ...]]:
        return {entry.image: entry.captions for entry in self.entries}


Splits = dict[tuple[str, ...], Split]
"""The splits read so far, by data, features, encoder and name."""


@dataclass(frozen=True)
class TrainedCaptioner:
    """A captioner and its data. Weights and data are loaded once, on first use."""

    name: str
    run: Run
    config: CaptionsConfig
    vocabulary: Vocabulary
    splits: Splits = field(default_factory=dict, repr=False)

    @cached_property
    def method(self) -> Method:
        return self.run.load_weights(build_method(self.config, len(self.vocabulary)))

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder whose features the run was trained on."""
        encoder = load_encoder(self.config.encoder)
        if encoder.key != self.config.encoder_key:
            raise ValueError(
                f"{self.run.folder} was trained on features of {self.config.encoder_key}; the encoder "
                f"{encoder.name} here is {encoder.key}."
            )
        return encoder

    def members(self, samples: int, seed: int = 0) -> list[Member]:
        """The weights to predict with: `samples` of them, or with 0 those the method rests at."""
        if samples < 0:
            raise ValueError(f"samples = {samples}; use 0 for the mean weights, or 1 and more.")
        return self.method.members(samples, seed) if samples else self.method.resting()

    def split(self, name: str) -> Split:
        """A split of the run's data, or of the data it was opened with."""
        config = self.config
        key = (config.data, config.features, config.encoder_key, name)
        if key not in self.splits:
            self.splits[key] = _split(load(config, (name,)), name)
        return self.splits[key]

    def encoded(self, split: Split) -> Encoded:
        return encode(split.entries, split.features, self.vocabulary)

    def beliefs(
        self,
        captions: Encoded,
        members: Sequence[Member],
        progress: Callable[[int], None] = lambda captions: None,
    ) -> CaptionBeliefs:
        """What the members' average believes about each word of some captions."""
        return word_beliefs(self.method.model, members, captions, len(self.vocabulary), progress)

    def decode(
        self,
        features: Tensor,
        members: Sequence[Member],
        *,
        beam: int,
        progress: Callable[[int], None] = lambda images: None,
    ) -> list[Caption]:
        """The captions of images (N, F), by beam search in the members' average."""
        return decode(
            self.method.model, members, features, self.vocabulary, beam=beam, progress=progress
        )


def trained_captioners(
    runs: Sequence[Run], data: str | None = None, features: str | None = None
) -> list[TrainedCaptioner]:
    """The captioners of several runs, with unique names; on their own data, or on other data."""
    splits: Splits = {}
    found = []
    for run, label in zip(runs, labels(runs), strict=True):
        config = run.config
        assert isinstance(config, CaptionsConfig)
        if data is not None:
            config = replace(config, data=data, features=features or "")
        elif features is not None:
            config = replace(config, features=features)
        found.append(TrainedCaptioner(label, run, config, read_vocabulary(run), splits))
    return found


def open_captioner(
    folder: Path, data: str | None = None, features: str | None = None
) -> TrainedCaptioner:
    """The captioner in a run folder."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file; this needs the folder of a run.")
    run = open_run(folder, experiment(CaptionsConfig.TASK))
    return trained_captioners([run], data, features)[0]


def notes_of(models: Sequence[TrainedCaptioner], split: str = "test") -> list[str]:
    """What was left out of the data of several models, each line once."""
    return list(dict.fromkeys(note for model in models for note in model.split(split).notes))


def check_same_images(models: Sequence[TrainedCaptioner], split: str = "test") -> None:
    """Raise ValueError unless the models are evaluated on the same images and captions."""
    first, *others = models
    for other in others:
        if other.split(split).entries != first.split(split).entries:
            raise ValueError(
                f"{first.name} and {other.name} have different {split} images "
                f"({len(first.split(split).entries):,} and {len(other.split(split).entries):,}); "
                "give --data to compare them on the same ones."
            )


def check_same_words(models: Sequence[TrainedCaptioner]) -> None:
    """Raise ValueError unless the models have one vocabulary, so that the probabilities of words compare."""
    first, *others = models
    for other in others:
        if not same_words(first, other):
            sizes = f"{len(first.vocabulary):,} and {len(other.vocabulary):,} words"
            raise ValueError(
                f"{first.name} and {other.name} have different vocabularies ({sizes}), so that <unk> stands "
                "for other words in each and their figures cannot be compared; give one at a time."
            )


def same_words(first: TrainedCaptioner, other: TrainedCaptioner) -> bool:
    """Whether the vocabularies have the same words."""
    return set(first.vocabulary.words) == set(other.vocabulary.words)


def read_vocabulary(run: Run) -> Vocabulary:
    path = run.folder / VOCABULARY
    if not path.is_file():
        raise ValueError(f"{run.folder} has no {VOCABULARY}; restore it from a copy.")
    return Vocabulary.read(path)


def _split(loaded: Loaded, name: str) -> Split:
    entries = loaded.images.splits[name]
    features = loaded.features.of([entry.image for entry in entries])
    return Split(loaded.images, entries, features, loaded.notes)
