"""Uncertainty on out-of-distribution text: the paper's entropy gap [F17, sec. 5.1], and related measures.

A text is corrupted (reversed, shuffled, mixed with other words) or replaced by one of another domain. A
good model has a higher entropy there, so that windows of words can be classified by their uncertainty.

Text of another domain has many unknown words, and those mislead: `<unk>` is easy to predict, whatever word
it stands for, and after it the predictions of all weight samples are alike. So the surprise of a text is
that of the words which the model knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesrnn.evaluation.beliefs import Beliefs
from bayesrnn.evaluation.ranks import auroc
from bayesrnn.tasks.language.evaluation.beliefs import LanguageModel, beliefs
from bayesrnn.tasks.language.evaluation.scoring import Segment

SIGNALS: tuple[str, ...] = ("surprise", "entropy", "mutual_information")
"""The statistics by which a window is classified, the first by default: surprise is -log p of the true
words that are in the vocabulary."""

MOST_WINDOW = 100
"""Upper limit on the words in a window, whose distributions are all in memory, for each stream."""


@dataclass(frozen=True)
class Text:
    """A named text; the first token is context only."""

    name: str
    tokens: Tensor


@dataclass(frozen=True)
class Uncertainty:
    """A model's uncertainty on a text, in nats per word, overall and for each window of words."""

    words: int
    unknown: float
    """The share of the words that are not in the vocabulary."""
    surprise: float
    entropy: float
    mutual_information: float
    windows: Mapping[str, Tensor]
    """Each signal's mean over the words of a window; a window without a known word has infinite surprise."""


@dataclass(frozen=True)
class Gap:
    """A text compared with the true one, for one model: differences in nats per word, and AUROC by signal.

    AUROC is the probability that a window of the other text has a higher value than one of the true text:
    0.5 is chance, 1 is perfect.
    """

    model: str
    samples: int
    """Number of weight samples averaged over; 0 for none."""
    text: str
    words: int
    unknown: float
    """The share of the words of this text that are not in the vocabulary."""
    entropy: float
    """Mean entropy on this text (not the gap)."""
    surprise_gap: float
    entropy_gap: float
    mutual_information_gap: float
    auroc: Mapping[str, float]

    @property
    def expected_entropy_gap(self) -> float:
        """The gap of E[H], the mean entropy of the weight samples: H[E[p]] = E[H] + MI."""
        return self.entropy_gap - self.mutual_information_gap

    def as_json(self) -> dict:
        return {**asdict(self), "expected_entropy_gap": self.expected_entropy_gap}


@dataclass(frozen=True)
class Contender:
    """A model in the benchmark: one language model, or several to average over."""

    name: str
    models: Sequence[LanguageModel]
    counts: Sequence[int] = ()
    """Numbers of models to average over; if empty, all of them, reported as one model with 0 samples."""


def reverse(tokens: Tensor) -> Tensor:
    """The words in reverse order. A text begins and ends with `<eos>`, and so does its reverse."""
    return tokens.flip(0)


def shuffle(tokens: Tensor, seed: int = 0) -> Tensor:
    """The same words in a random order."""
    order = torch.randperm(len(tokens) - 1, generator=torch.Generator().manual_seed(seed))
    return torch.cat([tokens[:1], tokens[1:][order]])


def add_noise(tokens: Tensor, rate: float, seed: int = 0) -> Tensor:
    """Replace each word with probability `rate` by a random word of the text."""
    if not 0 <= rate <= 1:
        raise ValueError(f"noise = {rate} must lie between 0 and 1: the share of words replaced.")
    generator = torch.Generator().manual_seed(seed)
    words = tokens[1:]
    hit = torch.rand(len(words), generator=generator) < rate
    others = words[torch.randint(len(words), (len(words),), generator=generator)]
    return torch.cat([tokens[:1], torch.where(hit, others, words)])


def unigram_entropy(tokens: Tensor) -> float:
    """The entropy of a model that knows how often each word of this text occurs and nothing else."""
    counts = tokens[1:].unique(return_counts=True)[1].double()
    return torch.special.entr(counts / counts.sum()).sum().item()


def benchmark(
    contenders: Sequence[Contender],
    true: Text,
    others: Sequence[Text],
    vocabulary: int,
    *,
    unknown: int | None = None,
    window: int = 10,
    streams: int = 20,
    progress: Callable[[str, str, int], None] = lambda model, text, words: None,
) -> list[Gap]:
    """The gap of every contender on every text, for each of its numbers of samples.

    `unknown` is the token of all words that are not in the vocabulary, if there is one.
    """
    results = []
    for contender in contenders:

        def judge(text: Text, contender: Contender = contender) -> dict[int, Uncertainty]:
            return measure(
                contender.models,
                text.tokens,
                vocabulary,
                unknown=unknown,
                counts=contender.counts or None,
                window=window,
                streams=streams,
                progress=lambda words: progress(contender.name, text.name, words),
            )

        own = judge(true)
        for text in others:
            for count, other in judge(text).items():
                samples = count if contender.counts else 0
                results.append(gap_between(contender.name, samples, text.name, own[count], other))
    return results


def measure(
    models: Sequence[LanguageModel],
    tokens: Tensor,
    vocabulary: int,
    *,
    unknown: int | None = None,
    counts: Sequence[int] | None = None,
    window: int = 10,
    streams: int = 20,
    progress: Callable[[int], None] = lambda words: None,
) -> dict[int, Uncertainty]:
    """The uncertainty of the average of the first n models, for each count n, in one pass over the text."""
    check_window(window, len(tokens) - 1)
    if streams < 1:
        raise ValueError(f"streams = {streams} must be at least 1.")
    streams = min(streams, (len(tokens) - 1) // window)  # at least one window in each
    sums: dict[int, UncertaintySum] = {}
    passes = beliefs(models, tokens, vocabulary, counts=counts, streams=streams, window=window)
    for segment, found in passes:
        for samples, belief in found.items():
            sums.setdefault(samples, UncertaintySum(window, unknown)).add(segment, belief)
        progress(int(segment.counted.sum()))
    return {samples: total.value for samples, total in sums.items()}


class UncertaintySum:
    """The uncertainty of a text, from the beliefs about its segments one after the other."""

    def __init__(self, window: int, unknown: int | None) -> None:
        self.window = window
        self.unknown = -1 if unknown is None else unknown  # no token is -1
        self._sums = dict.fromkeys(SIGNALS, 0.0)
        self._words = dict.fromkeys(SIGNALS, 0)
        self._windows: dict[str, list[Tensor]] = {signal: [] for signal in SIGNALS}

    def add(self, segment: Segment, belief: Beliefs) -> None:
        counted, known = segment.counted, segment.counted & (segment.y != self.unknown)
        values = {
            "surprise": (-belief.log_prob, known),
            "entropy": (belief.entropy, counted),
            "mutual_information": (belief.mutual_information, counted),
        }
        for signal, (value, where) in values.items():
            self._sums[signal] += value[where].double().sum().item()
            self._words[signal] += int(where.sum())
            self._windows[signal].append(_window_means(value, where, counted, self.window))

    @property
    def value(self) -> Uncertainty:
        words, known = self._words["entropy"], self._words["surprise"]
        return Uncertainty(
            words=words,
            unknown=(words - known) / words,
            windows={signal: torch.cat(parts) for signal, parts in self._windows.items()},
            **{
                signal: total / self._words[signal] if self._words[signal] else math.inf
                for signal, total in self._sums.items()
            },
        )


def check_window(window: int, words: int) -> None:
    """Raise ValueError unless a window fits a text of `words` words."""
    if not 1 <= window <= MOST_WINDOW:
        raise ValueError(f"window = {window} must lie between 1 and {MOST_WINDOW} words.")
    if words < window:
        raise ValueError(f"window = {window} is longer than a text of {words} words.")


def _window_means(value: Tensor, where: Tensor, counted: Tensor, window: int) -> Tensor:
    """The mean over those words of each window, of each stream, that are chosen; inf if there are none.

    Incomplete windows at the end are left out.
    """
    whole = len(value) // window * window
    shape = (-1, window, value.shape[1])
    value, where, counted = (part[:whole].view(shape) for part in (value, where, counted))
    means = torch.where(where, value, 0).sum(1) / where.sum(1)
    return torch.where(where.any(1), means, math.inf)[counted.all(1)]


def gap_between(model: str, samples: int, text: str, own: Uncertainty, other: Uncertainty) -> Gap:
    """What a model's uncertainty on another text is beyond that on its own."""
    return Gap(
        model=model,
        samples=samples,
        text=text,
        words=other.words,
        unknown=other.unknown,
        entropy=other.entropy,
        surprise_gap=other.surprise - own.surprise,
        entropy_gap=other.entropy - own.entropy,
        mutual_information_gap=other.mutual_information - own.mutual_information,
        auroc={signal: auroc(own.windows[signal], other.windows[signal]) for signal in SIGNALS},
    )
