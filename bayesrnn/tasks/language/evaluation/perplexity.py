"""Perplexity of a text: at the mean, by Monte Carlo, sharpened, and each with dynamic evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bayesrnn import ranks
from bayesrnn.methods import Method
from bayesrnn.tasks.language.evaluation.scoring import (
    Adaptation,
    Dynamic,
    Ensemble,
    Scorer,
    Segment,
    SharpenedBound,
    WordScores,
    divides_streams,
    segments,
)

WORDS_AT_ONCE = 256
"""Default number of words in a segment, chosen so that its logits fit the cache."""

SEGMENTS_AT_ONCE = 64
"""Number of segments scored each time the weights of a sample are drawn."""

DYNAMIC_STEPS = 35
"""Number of words in a segment of dynamic evaluation: scored first, then trained on."""


@dataclass(frozen=True)
class Perplexity:
    """exp(nats per word) over a whole text."""

    nats: float
    words: int
    is_bound: bool = False
    """Whether the value is an upper bound on perplexity, as for the sharpened posterior."""

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
    noise: bool = True,
    dynamic: Adaptation | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda words: None,
) -> Perplexity:
    """The perplexity of a text; the first token is context only.

    Args:
        streams: parallel streams of the text; with 1 the state is carried through all of it.
        samples: weight samples to average over; 0 for the weights the method predicts with by default.
        sharpened: score each segment with the posterior sharpened on it: an upper bound.
        noise: without it, at the centre of the sharpened posterior; its KL is added, but it is no bound.
        dynamic: the steps of dynamic evaluation; None for static evaluation.
        steps: time steps of a segment, the unit of dynamic evaluation and sharpening.
    """
    scorer = make_scorer(
        method, samples=samples, sharpened=sharpened, noise=noise, seed=seed, streams=streams
    )
    adapting = Dynamic(method, scorer, dynamic) if dynamic else None
    if adapting and streams > 1:
        raise ValueError(
            f"dynamic evaluation with {streams} streams would learn from later text; use 1 stream."
        )
    if steps is None:
        steps = DYNAMIC_STEPS if adapting or sharpened else max(1, WORDS_AT_ONCE // streams)
    nats, words = 0.0, 0
    parts = segments(tokens, streams=streams, steps=steps)
    by_streams = isinstance(scorer, Ensemble) and not adapting and divides_streams(streams, tokens)
    if by_streams:
        parts = (segment.of(ranks.share(segment.x.shape[1])) for segment in parts)
    try:
        for segment, scores in _scored(adapting or scorer, parts):
            nats -= scores.log_probs[segment.counted].double().sum().item()
            nats += scores.kl_theta
            count = int(segment.counted.sum())
            words += count
            progress(count * ranks.world() if by_streams else count)
    finally:
        if adapting is not None:
            adapting.restore()
    if by_streams:
        total = torch.tensor([nats, words], dtype=torch.float64)
        ranks.sum_(total)
        nats, words = total[0].item(), int(total[1])
    return Perplexity(nats, words, is_bound=sharpened and noise)


def _scored(scorer: Scorer, remaining: Iterator[Segment]) -> Iterator[tuple[Segment, WordScores]]:
    """Each segment with its scores; several segments at a time if the scorer supports it."""
    if not isinstance(scorer, Ensemble):
        for segment in remaining:
            yield segment, scorer.score(segment)
        return
    while group := list(islice(remaining, SEGMENTS_AT_ONCE)):
        yield from zip(group, scorer.score_all(group), strict=True)


def make_scorer(
    method: Method,
    *,
    samples: int,
    sharpened: bool,
    seed: int,
    noise: bool = True,
    streams: int = 1,
) -> Scorer:
    """How the words of a text in so many streams are scored.

    Ranks divide the streams; if there are too few, the members; if those are too few as well, all ranks do
    the same.
    """
    if samples < 0:
        raise ValueError(f"samples = {samples}; use 0 for the mean weights, or 1 and more.")
    if sharpened:
        if method.sharpened is None:
            raise ValueError(
                "this run was not trained with sharpening; use a run of --method sharpened."
            )
        return SharpenedBound(method.sharpened, seed, noise=noise)
    members = method.members(samples, seed) if samples else method.resting()
    divided = streams < ranks.world() <= len(members)
    return Ensemble(method.model, members, divided=divided)
