"""What a model believes about each next word: the whole distribution, not just the probability of one.

Any language model can be looked at this way; it needs one method, `next_word_log_probs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn.methods import Member, Method
from bayesrnn.prediction import evaluating
from bayesrnn.tasks.language.evaluation.scoring import Segment, segments

PROBABILITIES_AT_ONCE = 2**26
"""How many are held at a time, whatever the number of samples and the length of the text: 256 MB."""

PROBABILITIES_OF_A_SEGMENT = 2**21
"""Of a model's answer to one call, so that it stays in the cache on its way."""

WORDS_OF_A_SEGMENT = 1024
"""The most, for small vocabularies."""


ROWS_AT_ONCE = 16
"""Distributions to sum up at a time: what is read several times stays in the nearest cache."""


class LanguageModel(Protocol):
    """A model of the next word.

    A model whose weights must be put in place first may also have a method `ready()`, a context
    manager; consecutive calls for the same text are made inside it.
    """

    def next_word_log_probs(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Tokens (T, N) -> log p of each next word (T, N, V), in nats, and the state after the last.

        `state` is what the last call returned for the stretch before, or None at the start of a text.
        """
        ...


@dataclass(frozen=True)
class Beliefs:
    """What the average of some models held of the words of a segment; each (T, N), nats."""

    log_prob: Tensor
    """Of the word that came."""
    entropy: Tensor
    expected_entropy: Tensor
    """The average of the models' own entropies."""
    confidence: Tensor
    """Probability of the likeliest word."""
    correct: Tensor
    """Whether the likeliest word came."""
    brier: Tensor
    """sum_w (p_w - [w came])^2."""

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0)


def models_of(method: Method, samples: int = 0, seed: int = 0) -> list[LanguageModel]:
    """A method's weight samples as language models; with 0, the weights it predicts with at rest."""
    if samples < 0:
        raise ValueError(f"samples = {samples}; use 0 for the mean weights, or 1 and more.")
    members = method.members(samples, seed) if samples else method.resting()
    return [_MemberModel(method.model, member) for member in members]


def beliefs(
    models: Sequence[LanguageModel],
    tokens: Tensor,
    vocabulary: int,
    *,
    counts: Sequence[int] | None = None,
    streams: int = 1,
    window: int = 1,
) -> Iterator[tuple[Segment, dict[int, Beliefs]]]:
    """Go through a text once; for each stretch, the beliefs of the average of the first 1, 2, 5, ... models.

    Args:
        tokens: the text; its first token is context only.
        counts: of how many models to take the average; by default of all.
        streams: parallel stretches of the text; with 1 the state is carried from start to end.
        window: make each segment a multiple of so many steps, but for the last.
    """
    if streams < 1:
        raise ValueError(f"streams = {streams} must be at least 1.")
    counts = [len(models)] if counts is None else sorted(counts)
    if not counts or not 1 <= counts[0] <= counts[-1] <= len(models):
        raise ValueError(
            f"counts = {counts} must lie between 1 and {len(models)}, the models given."
        )
    states: list[Any] = [None] * len(models)
    words = min(PROBABILITIES_OF_A_SEGMENT // vocabulary, WORDS_OF_A_SEGMENT)
    steps = max(1, words // streams // window) * window
    at_once = max(1, PROBABILITIES_AT_ONCE // (vocabulary * steps * streams))
    stretches = segments(tokens, streams=streams, steps=steps)
    while group := list(islice(stretches, at_once)):
        totals = [_Total(segment.y) for segment in group]
        found: list[dict[int, Beliefs]] = [{} for _ in group]
        for index, model in enumerate(models[: counts[-1]]):
            with torch.no_grad(), _ready(model):
                for segment, total in zip(group, totals, strict=True):
                    log_probs, states[index] = model.next_word_log_probs(segment.x, states[index])
                    total.add(log_probs)
            if index + 1 in counts:
                for total, at in zip(totals, found, strict=True):
                    at[index + 1] = total.average(index + 1)
        yield from zip(group, found, strict=True)


class _Total:
    """Sums over models: of probabilities, of entropies, and of log p of the words that came."""

    def __init__(self, y: Tensor) -> None:
        self.y = y[..., None]
        self.probs: Tensor | None = None  # (T, N, V)
        self.entropy = torch.zeros(y.shape, device=y.device)
        self.log_prob = torch.full(y.shape, -math.inf, device=y.device)

    def add(self, log_probs: Tensor) -> None:
        chosen = log_probs.gather(-1, self.y).squeeze(-1)
        if chosen.isnan().any():
            raise ValueError("the model's log probabilities are not numbers; has it diverged?")
        self.log_prob = torch.logaddexp(self.log_prob, chosen)
        log_probs = log_probs.contiguous()  # so that the rows below are views
        if self.probs is None:
            self.probs = torch.zeros_like(log_probs)
        rows = (log_probs.flatten(0, 1), self.probs.flatten(0, 1), self.entropy.flatten())
        for log_p, total, entropy in zip(*(part.split(ROWS_AT_ONCE) for part in rows), strict=True):
            probs = log_p.exp()
            total.add_(probs)
            entropy.sub_(_sum_of_logs(probs, log_p))

    def average(self, count: int) -> Beliefs:
        """With P the sum over `count` models, of average p = P / count."""
        total = self.probs
        assert total is not None
        highest, likeliest = total.max(-1)
        chosen = total.gather(-1, self.y).squeeze(-1)
        own = self.entropy / count
        # -sum p log p = log count - sum P log P / count
        entropy = own
        if count > 1:
            rows = total.flatten(0, 1).split(ROWS_AT_ONCE)
            logs = torch.cat([_sum_of_logs(row.log(), row) for row in rows]).view(own.shape)
            entropy = math.log(count) - logs / count
        return Beliefs(
            log_prob=self.log_prob - math.log(count),
            entropy=entropy,
            expected_entropy=own,
            confidence=highest / count,
            correct=likeliest == self.y.squeeze(-1),
            brier=torch.linalg.vecdot(total, total) / count**2 - 2 * chosen / count + 1,
        )


class _MemberModel:
    """A model with one member of an ensemble in it."""

    def __init__(self, model: nn.Module, member: Member) -> None:
        self.model = model
        self.member = member
        self._is_ready = False

    @contextmanager
    def ready(self) -> Iterator[None]:
        with evaluating(self.model), self.member():
            self._is_ready = True
            try:
                yield
            finally:
                self._is_ready = False

    def next_word_log_probs(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        with nullcontext() if self._is_ready else self.ready():
            logits, state = self.model(tokens, state)
        return logits.log_softmax(-1), state


def _ready(model: LanguageModel) -> AbstractContextManager[Any]:
    ready = getattr(model, "ready", nullcontext)
    return ready()


def _sum_of_logs(one: Tensor, other: Tensor) -> Tensor:
    """sum p log p, where 0 log 0 = 0; `one` of the two is used up."""
    products = one.mul_(other).sum(-1)
    if products.isnan().any():  # some word has no probability at all
        products = one.nan_to_num_(0.0).sum(-1)
    return products
