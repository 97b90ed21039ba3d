"""What a captioner, or the average of many, believes about each word of given captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from bayesrnn.devices import device_of
from bayesrnn.ensemble import evaluating, log_softmax
from bayesrnn.evaluation.beliefs import Beliefs, BeliefSum
from bayesrnn.methods import Member
from bayesrnn.tasks.captions.data.encoded import Encoded
from bayesrnn.tasks.captions.model import PADDING, Captioner, places_of

PROBABILITIES_AT_ONCE = 2**23
"""Upper limit on the probabilities in memory: 32 MB."""
WORDS_AT_ONCE = 2**13
"""Upper limit on the words whose states are in memory."""


@dataclass(frozen=True)
class CaptionBeliefs:
    """The beliefs about the words of captions, one after the other, the end of each included."""

    words: Beliefs  # tensors of shape (words,)
    lengths: Tensor  # (captions,)

    @property
    def nats(self) -> float:
        """-log p of all words."""
        return -self.words.log_prob.double().sum().item()

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats / int(self.lengths.sum()), 700.0))

    def log_prob(self) -> Tensor:
        """log p of each caption (captions,)."""
        return self.per_caption(self.words.log_prob, mean=False)

    def per_caption(self, values: Tensor, *, mean: bool = True) -> Tensor:
        """The mean, or the sum, of a statistic over the words of each caption."""
        owner = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)
        sums = torch.zeros(len(self.lengths), dtype=torch.float64)
        sums.index_add_(0, owner, values.double())
        return sums / self.lengths if mean else sums


def word_beliefs(
    model: nn.Module,
    members: Sequence[Member],
    captions: Encoded,
    vocabulary: int,
    progress: Callable[[int], None] = lambda captions: None,
) -> CaptionBeliefs:
    """The beliefs of the average of the members about every word of the captions."""
    assert isinstance(model, Captioner)
    lengths = captions.lengths
    order = lengths.argsort(stable=True)  # captions of similar length together: little padding
    groups = _groups(order, lengths, min(PROBABILITIES_AT_ONCE // vocabulary, WORDS_AT_ONCE))
    found: list[tuple[Tensor, Beliefs]] = []
    with torch.no_grad(), evaluating(model):
        for chosen in groups:
            batch = captions.batch(captions.image[chosen], captions.y[chosen])
            y = batch[-1]
            total = BeliefSum(y[y != PADDING])
            inputs = [tensor.to(device_of(model)) for tensor in (*batch, places_of(y))]
            for member in members:
                with member():
                    total.add(log_softmax(model.word_logits(*inputs)))
            # The words of a batch come time step by time step.
            owner = chosen.expand_as(y)[y != PADDING]
            time = torch.arange(len(y))[:, None].expand_as(y)[y != PADDING]
            found.append((_places(owner, time, lengths), total.average()))
            progress(len(chosen))
    places = torch.cat([where for where, _ in found])
    values = {}
    for field in fields(Beliefs):
        joined = torch.cat([getattr(beliefs, field.name) for _, beliefs in found])
        values[field.name] = torch.empty_like(joined).index_copy_(0, places, joined)
    return CaptionBeliefs(Beliefs(**values), lengths)


def _places(owner: Tensor, time: Tensor, lengths: Tensor) -> Tensor:
    """Where each word stands when captions follow one another."""
    starts = lengths.cumsum(0) - lengths
    return starts[owner] + time


def _groups(order: Tensor, lengths: Tensor, words: int) -> list[Tensor]:
    """Captions in the given order, in groups of at most about `words` words."""
    groups = (lengths[order].cumsum(0) - 1) // max(words, 1)
    _, sizes = groups.unique_consecutive(return_counts=True)
    return list(order.split(sizes.tolist()))
