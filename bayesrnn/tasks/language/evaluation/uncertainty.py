"""Uncertainty on out-of-distribution text: the paper's entropy gap [F17, sec. 5.1], and related measures.

A text is corrupted (reversed, shuffled, mixed with other words) or replaced by one of another domain. A
good model has a higher entropy there, so that windows of words can be classified by their uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesrnn.evaluation.ranks import auroc
from bayesrnn.tasks.language.evaluation.beliefs import LanguageModel, beliefs

SIGNALS = ("entropy", "mutual_information", "surprise")
"""The statistics by which a window is classified; surprise is -log p of the true words."""


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
    entropy: float
    mutual_information: float
    surprise: float
    windows: Mapping[str, Tensor]


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
    entropy: float
    """Mean entropy on this text (not the gap)."""
    entropy_gap: float
    mutual_information_gap: float
    surprise_gap: float
    auroc: Mapping[str, float]

    def as_json(self) -> dict:
        return asdict(self)


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


def benchmark(
    contenders: Sequence[Contender],
    true: Text,
    others: Sequence[Text],
    vocabulary: int,
    *,
    window: int = 10,
    streams: int = 20,
    progress: Callable[[str, str, int], None] = lambda model, text, words: None,
) -> list[Gap]:
    """The gap of every contender on every text, for each of its numbers of samples."""
    results = []
    for contender in contenders:

        def judge(text: Text, contender: Contender = contender) -> dict[int, Uncertainty]:
            return measure(
                contender.models,
                text.tokens,
                vocabulary,
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
    sums: dict[int, dict[str, float]] = {}
    windows: dict[int, dict[str, list[Tensor]]] = {}
    words = 0
    passes = beliefs(models, tokens, vocabulary, counts=counts, streams=streams, window=window)
    for segment, found in passes:
        count = int(segment.counted.sum())
        for samples, belief in found.items():
            total = sums.setdefault(samples, dict.fromkeys(SIGNALS, 0.0))
            kept = windows.setdefault(samples, {signal: [] for signal in SIGNALS})
            values = (belief.entropy, belief.mutual_information, -belief.log_prob)
            for signal, value in zip(SIGNALS, values, strict=True):
                total[signal] += value[segment.counted].double().sum().item()
                kept[signal].append(_window_means(value, segment.counted, window))
        words += count
        progress(count)
    return {
        samples: Uncertainty(
            words=words,
            **{signal: total / words for signal, total in sums[samples].items()},
            windows={signal: torch.cat(parts) for signal, parts in windows[samples].items()},
        )
        for samples in sums
    }


def check_window(window: int, words: int) -> None:
    """Raise ValueError unless a window fits a text of `words` words."""
    if not 1 <= window <= MOST_WINDOW:
        raise ValueError(f"window = {window} must lie between 1 and {MOST_WINDOW} words.")
    if words < window:
        raise ValueError(f"window = {window} is longer than a text of {words} words.")


def _window_means(value: Tensor, counted: Tensor, window: int) -> Tensor:
    """The mean over each window of each stream; incomplete windows at the end are left out."""
    whole = len(value) // window * window
    shape = (-1, window, value.shape[1])
    complete = counted[:whole].view(shape).all(1)
    return value[:whole].view(shape).mean(1)[complete]


def gap_between(model: str, samples: int, text: str, own: Uncertainty, other: Uncertainty) -> Gap:
    """What a model's uncertainty on another text is beyond that on its own."""
    return Gap(
        model=model,
        samples=samples,
        text=text,
        words=other.words,
        entropy=other.entropy,
        entropy_gap=other.entropy - own.entropy,
        mutual_information_gap=other.mutual_information - own.mutual_information,
        surprise_gap=other.surprise - own.surprise,
        auroc={signal: auroc(own.windows[signal], other.windows[signal]) for signal in SIGNALS},
    )
