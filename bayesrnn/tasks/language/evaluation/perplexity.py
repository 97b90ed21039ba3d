"""Perplexity of a text: at the mean, by Monte Carlo, sharpened, and each with dynamic evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from bayesrnn.methods import Method
from bayesrnn.tasks.language.evaluation.scoring import (
    Dynamic,
    Ensemble,
    Scorer,
    Segment,
    SharpenedBound,
    WordScores,
    segments,
)

WORDS_AT_ONCE = 256
"""A segment's size where nothing else decides it, so that its logits, times the vocabulary, fit the cache."""

SEGMENTS_AT_ONCE = 64
"""Segments scored for each time that a sample's weights are made."""

DYNAMIC_STEPS = 35
"""Words that dynamic evaluation scores and then learns from at once."""


@dataclass(frozen=True)
class Perplexity:
    """exp(nats per word) over a whole text."""

    nats: float
    words: int
    is_bound: bool = False
    """Whether it is an upper bound on perplexity, as it is for the sharpened posterior."""

    @property
    def value(self) -> float:
        return math.exp(min(self.nats / self.words, 700))


def perplexity(
    method: Method,
    tokens: Tensor,
    *,
    streams: int = 1,
    samples: int = 0,
    sharpened: bool = False,
    dynamic_lr: float | None = None,
    clip: float = 5.0,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda words: None,
) -> Perplexity:
    """The perplexity of `tokens`, whose first is context only.

    Args:
        streams: parallel stretches of the text; with 1 the state is carried from start to end.
        samples: Monte Carlo samples to average over; 0 for the weights at rest.
        sharpened: score each segment with the posterior sharpened on it.
        dynamic_lr: the learning rate of dynamic evaluation; None for none.
        steps: time steps of a segment, which dynamic evaluation and sharpening learn from at once.
    """
    scorer = make_scorer(method, samples=samples, sharpened=sharpened, seed=seed)
    adapting = Dynamic(method, scorer, lr=dynamic_lr, clip=clip) if dynamic_lr is not None else None
    if adapting and streams > 1:
        raise ValueError(
            f"dynamic evaluation with {streams} streams would learn from later text; use 1 stream."
        )
    if steps is None:
        steps = DYNAMIC_STEPS if adapting or sharpened else max(1, WORDS_AT_ONCE // streams)
    nats, words = 0.0, 0
    try:
        for segment, scores in _scored(
            adapting or scorer, segments(tokens, streams=streams, steps=steps)
        ):
            nats -= scores.log_probs[segment.counted].double().sum().item()
            nats += scores.kl_theta
            count = int(segment.counted.sum())
            words += count
            progress(count)
    finally:
        if adapting is not None:
            adapting.restore()
    return Perplexity(nats, words, is_bound=sharpened)


def _scored(scorer: Scorer, stretches: Iterator[Segment]) -> Iterator[tuple[Segment, WordScores]]:
    """Each segment with its scores; several at a time where the scorer can do that."""
    if not isinstance(scorer, Ensemble):
        for segment in stretches:
            yield segment, scorer.score(segment)
        return
    while group := list(islice(stretches, SEGMENTS_AT_ONCE)):
        yield from zip(group, scorer.score_all(group), strict=True)


def make_scorer(method: Method, *, samples: int, sharpened: bool, seed: int) -> Scorer:
    if samples < 0:
        raise ValueError(f"samples = {samples}; use 0 for the mean weights, or 1 and more.")
    if sharpened:
        if method.sharpened is None:
            raise ValueError(
                "this run was not trained with sharpening; use a run of --method sharpened."
            )
        return SharpenedBound(method.sharpened, seed)
    return Ensemble(method.model, method.members(samples, seed) if samples else method.resting())
