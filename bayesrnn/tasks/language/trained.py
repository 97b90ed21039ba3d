"""Trained language models, from run folders or exported files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

from torch import Tensor

from bayesrnn.data.download import cache_folder
from bayesrnn.data.mapped import was_read
from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.files import is_run
from bayesrnn.methods import Method
from bayesrnn.tasks.language.config import LanguageModelConfig
from bayesrnn.tasks.language.data.corpus import load_split
from bayesrnn.tasks.language.data.sources import (
    check_own_text,
    find_source,
    is_there,
    training_text,
)
from bayesrnn.tasks.language.evaluation.scoring import Adaptation
from bayesrnn.tasks.language.exported import Exported
from bayesrnn.tasks.language.task import build_method, rates_of_words
from bayesrnn.training.experiment import PRETRAINED, experiment, is_pretrained, no_folder, open_run
from bayesrnn.training.run import Run, labels

VOCABULARY = "vocabulary.txt"
"""A run's vocabulary: one word per line, in token order."""

TOKENS_AT_ONCE = 1 << 20
"""Of a text that is looked at as a whole."""

Texts = dict[tuple[str, str, Vocabulary], Tensor]
"""Tokens read so far, by text, split and vocabulary."""


@dataclass(frozen=True)
class TrainedModel:
    """A language model and its texts. Weights and texts are loaded once, on first use."""

    name: str
    path: Path
    config: LanguageModelConfig
    vocabulary: Vocabulary
    load: Callable[[], Method]
    run: Run | None = None
    """None for an exported file."""
    texts: Texts = field(default_factory=dict)

    @cached_property
    def method(self) -> Method:
        return self.load()

    def tokens(self, split: str, data: str | None = None, *, option: str = "--data") -> Tensor:
        """A split of the model's own text or of another, which must contain a word the model knows."""
        name = data or self.config.data
        if data is None:
            check_own_text(self.path, name)
        tokens = self.any_tokens(split, name, option=option)
        if self.share_known(tokens) == 0:
            raise ValueError(f"{self.path}: no word of {name} is in the run's vocabulary.")
        return tokens

    def any_tokens(self, split: str, data: str, *, option: str = "--data") -> Tensor:
        """A split of any text."""
        key = (data, split, self.vocabulary)
        if key not in self.texts:
            if is_run(Path(data)):
                raise ValueError(
                    f"{option} {data} is a run, not text; name a file or folder of text."
                )
            cache = cache_folder()
            source = find_source(data, cache, option)
            self.texts[key] = load_split(source, split, self.vocabulary, cache)
        return self.texts[key]

    def training_tokens(self, data: str | None = None) -> Tensor:
        """What the model was trained on; `data` is its present place, if it is not where it was."""
        name, cache = self.config.data, cache_folder()
        if data is not None and not is_there(name):
            name = data
        check_own_text(self.path, name)
        source = training_text(name, self.config.train_words, cache)
        return load_split(source, "train", self.vocabulary, cache)

    def adaptation(
        self, *, lr: float, rare_words: float, decay: float, data: str | None = None
    ) -> Adaptation:
        """Steps of dynamic evaluation, in which rare words may learn faster, as in `train --rare-words`."""
        rates = {}
        if rare_words:
            trained_on = self.training_tokens(data)
            rates = rates_of_words(trained_on, len(self.vocabulary), power=rare_words)
        return Adaptation(lr, self.config.clip, rates, decay)

    def share_known(self, tokens: Tensor) -> float:
        """The share of the words that are in the vocabulary."""
        ends = unknown = 0
        for part in tokens.split(TOKENS_AT_ONCE):
            ends += int((part == self.vocabulary.end).sum())
            unknown += int((part == self.vocabulary.unknown).sum())
            was_read(tokens, len(part))
        words = len(tokens) - ends
        return (words - unknown) / words if words else 0.0


def trained_models(runs: Sequence[Run]) -> list[TrainedModel]:
    """The models of several runs, with unique names; texts in common are read once."""
    texts: Texts = {}
    return [_of_run(run, label, texts) for run, label in zip(runs, labels(runs), strict=True)]


def open_trained(*paths: Path) -> list[TrainedModel]:
    """The models in run folders or exported files, or the one in the package."""
    texts: Texts = {}
    found = []
    for path in paths:
        if is_pretrained(path) or path.is_file():
            exported = Exported.open(model_file(path))
            name, config, vocabulary = path.name, exported.config, exported.vocabulary
            found.append(
                TrainedModel(name, path, config, vocabulary, exported.load_method, texts=texts)
            )
        else:
            if not path.exists() and get_close_matches(str(path), [str(PRETRAINED)]):
                raise ValueError(f"{path}: no such run folder; did you mean {PRETRAINED}?")
            run = open_language_run(path)
            found.append(_of_run(run, run.name, texts))
    names = [model.name for model in found]
    return [
        model if names.count(model.name) == 1 else replace(model, name=str(model.path))
        for model in found
    ]


def open_folder(path: Path) -> TrainedModel:
    """The model in a run folder; ValueError for an exported file."""
    if is_pretrained(path):
        raise no_folder(path)
    (model,) = open_trained(path)
    if model.run is None:
        raise ValueError(f"{path} is one file; this needs the folder of a run.")
    return model


def model_file(path: Path) -> Path:
    """The file that a path stands for: itself, or the model in the package."""
    return Path(__file__).with_name("pretrained.safetensors") if is_pretrained(path) else path


def open_language_run(folder: Path) -> Run:
    """A run of a language model."""
    return open_run(folder, experiment(LanguageModelConfig.TASK))


def read_vocabulary(run: Run) -> Vocabulary:
    return Vocabulary.read(run.folder / VOCABULARY)


def _of_run(run: Run, name: str, texts: Texts) -> TrainedModel:
    config, vocabulary = run.config, read_vocabulary(run)
    assert isinstance(config, LanguageModelConfig)

    def load() -> Method:
        return run.load_weights(build_method(config, len(vocabulary)))

    return TrainedModel(name, run.folder, config, vocabulary, load, run, texts)
