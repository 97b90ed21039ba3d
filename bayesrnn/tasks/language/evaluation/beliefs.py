"""Statistics of a model's predictive distribution for each next word: entropy, confidence and more.

Ranks (torchrun) divide the streams of a text or, if those are too few, the models; all get every result.
They can be computed for any language model with one method, `next_word_log_probs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn import ranks
from bayesrnn.devices import device_of
from bayesrnn.ensemble import evaluating, log_softmax
from bayesrnn.evaluation.beliefs import Beliefs, BeliefSum
from bayesrnn.methods import Member, Method
from bayesrnn.tasks.language.evaluation.scoring import Segment, divides_streams, segments

PROBABILITIES_AT_ONCE = 2**26
"""Upper limit on the probabilities in memory, for any number of samples and length of text: 256 MB."""

PROBABILITIES_OF_A_SEGMENT = 2**21
"""Upper limit on the probabilities that one call of a model returns, so that they fit the cache."""

WORDS_OF_A_SEGMENT = 1024
"""Upper limit on the words in a segment, which matters for small vocabularies."""


class LanguageModel(Protocol):
    """A model of the next word.

    A model that must set its weights first may also have a method `ready()`, a context manager;
    consecutive calls for the same text are made inside it.
    """

    def next_word_log_probs(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Tokens (T, N) -> log p of each next word (T, N, V), in nats, and the new state.

        `state` is the state that the call for the preceding words returned, or None at the start.
        """
        ...


def models_of(method: Method, samples: int = 0, seed: int = 0) -> list[LanguageModel]:
    """A method's weight samples as language models; with 0, the weights it predicts with by default."""
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
    """In one pass over a text, yield for each segment the beliefs of the average of the first n models.

    Args:
        tokens: the text; its first token is context only.
        counts: the numbers n of models to average over; by default all models.
        streams: parallel streams of the text; with 1 the state is carried through all of it.
        window: the length of each segment, except the last, is a multiple of this.
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
    by_streams = divides_streams(streams, tokens)
    by_models = not by_streams and 1 < ranks.world() <= counts[-1]
    remaining = segments(tokens, streams=streams, steps=steps)
    while group := list(islice(remaining, at_once)):
        own = [s.of(ranks.share(s.x.shape[1])) if by_streams else s for s in group]
        totals = [BeliefSum(segment.y) for segment in own]
        found: list[dict[int, Beliefs]] = [{} for _ in group]
        for index, model in enumerate(models[: counts[-1]]):
            if not by_models or index % ranks.world() == ranks.rank():
                with torch.no_grad(), _ready(model):
                    for segment, total in zip(own, totals, strict=True):
                        log_probs, states[index] = model.next_word_log_probs(
                            segment.x, states[index]
                        )
                        total.add(log_probs)
            if index + 1 in counts:
                for total, at in zip(totals, found, strict=True):
                    at[index + 1] = (total.over_ranks(vocabulary) if by_models else total).average()
        if by_streams:
            found = [{n: _joined(b) for n, b in at.items()} for at in found]
        yield from zip(group, found, strict=True)


def _joined(own: Beliefs) -> Beliefs:
    """The beliefs about the streams of all ranks, from those of each."""
    columns = asdict(own)
    whole = ranks.gather(torch.stack([column.double() for column in columns.values()]), dim=2)
    parts = zip(columns, whole, columns.values(), strict=True)
    return Beliefs(**{name: part.to(column.dtype) for name, part, column in parts})


class _MemberModel:
    """A model with the weights of one ensemble member."""

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
            logits, state = self.model(tokens.to(device_of(self.model)), state)
        return log_softmax(logits), state


def _ready(model: LanguageModel) -> AbstractContextManager[Any]:
    ready = getattr(model, "ready", nullcontext)
    return ready()
