"""Scoring text: every word once, with the state carried, in one pass for all weight samples.

Texts and scores are on the CPU, wherever the model computes. Ranks (torchrun) divide the weight samples, or
the streams of a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrnn import ranks
from bayesrnn.data.mapped import was_read
from bayesrnn.devices import device_of
from bayesrnn.ensemble import LogMeanExp, evaluating
from bayesrnn.methods import Member, Method
from bayesrnn.sharpened import Sharpened


@dataclass(frozen=True)
class Segment:
    """T consecutive words of N streams: `y` is scored where `counted`; x and y are (T, N)."""

    x: Tensor
    y: Tensor
    counted: Tensor

    def of(self, streams: slice) -> Segment:
        """The segment with some of its streams."""
        return Segment(self.x[:, streams], self.y[:, streams], self.counted[:, streams])

    def to(self, device: torch.device) -> Segment:
        return Segment(self.x.to(device), self.y.to(device), self.counted.to(device))


@dataclass(frozen=True)
class WordScores:
    """A model's scores for the words of a segment, each (T, N), in nats."""

    log_probs: Tensor
    kl_theta: float = 0.0
    """KL_theta of sharpening on the whole segment, in nats, to be added to the score."""


class Scorer(Protocol):
    """Scores consecutive segments of a text, carrying the recurrent state between them."""

    def score(self, segment: Segment) -> WordScores: ...


def segments(tokens: Tensor, *, streams: int, steps: int) -> Iterator[Segment]:
    """A text (its first token is context only) as consecutive segments that cover each word once.

    Each stream is a contiguous part of the text; the last may be shorter and is then padded.
    """
    words = len(tokens) - 1
    if words < 1:
        raise ValueError("there is no word to score.")
    streams = min(streams, words)
    length = -(-words // streams)
    starts = torch.arange(streams) * length
    for begin in range(0, length, steps):
        time = torch.arange(begin, min(begin + steps, length))
        position = time[:, None] + starts  # (T, N)
        counted = position < words
        position = position.clamp_max(words - 1)
        was_read(tokens, position.numel())
        yield Segment(tokens[position].long(), tokens[position + 1].long(), counted)


def divides_streams(streams: int, tokens: Tensor) -> bool:
    """Whether the ranks divide the streams of a text: if there is one for each."""
    return 1 < ranks.world() <= min(streams, len(tokens) - 1)


class Ensemble:
    """Averages the probabilities of an ensemble; each member has its own recurrent state."""

    def __init__(self, model: nn.Module, members: list[Member], *, divided: bool = False) -> None:
        """`divided`: each rank has some of the members; all ranks score the same segments."""
        self.model = model
        self.count = len(members)
        self.members = ranks.own(members) if divided else members
        self.divided = divided
        self.states: list[Any] = [None] * len(self.members)

    def score(self, segment: Segment) -> WordScores:
        return self.score_all([segment])[0]

    @torch.no_grad()
    def score_all(self, group: Sequence[Segment]) -> list[WordScores]:
        """Score several consecutive segments, setting the weights of each member only once."""
        averages = [LogMeanExp() for _ in group]
        here = [segment.to(device_of(self.model)) for segment in group]
        with evaluating(self.model):
            for index, member in enumerate(self.members):
                with member():
                    for segment, average in zip(here, averages, strict=True):
                        logits, self.states[index] = self.model(segment.x, self.states[index])
                        average.add(-_nats(logits, segment.y).view(segment.y.shape))
        if not self.divided:
            return [WordScores(average.value.cpu()) for average in averages]
        every = [ranks.gather(average.log_sum.cpu()[None]) for average in averages]
        return [WordScores(sums.logsumexp(0) - math.log(self.count)) for sums in every]


class SharpenedBound:
    """Scores each segment with the posterior sharpened on it; with kl_theta an upper bound.

    Without the noise of theta the centre of that posterior predicts, and with kl_theta it is no bound.
    """

    def __init__(self, sharpened: Sharpened, seed: int, *, noise: bool = True) -> None:
        self.sharpened = sharpened
        self.noise = noise
        self.generator = torch.Generator(sharpened.kappa.device).manual_seed(seed)
        self.state: Any = None

    def score(self, segment: Segment) -> WordScores:
        model = self.sharpened.posterior.model
        segment = segment.to(device_of(model))

        def closure():
            logits, state = model(segment.x, self.state)
            nats = _nats(logits, segment.y)
            total = (nats * segment.counted.flatten()).sum() * self.sharpened.loss_scale
            return total, nats, state

        with evaluating(model):
            bound = self.sharpened.bound(closure, noise=self.noise, generator=self.generator)
        _, nats, self.state = bound.value
        log_probs = -nats.view(segment.y.shape)
        return WordScores(log_probs.cpu(), kl_theta=bound.kl_theta.item())


@dataclass(frozen=True)
class Adaptation:
    """The SGD steps of dynamic evaluation."""

    lr: float = 0.1
    clip: float = 5.0
    """The largest gradient norm."""
    rates: Mapping[str, Tensor] = field(default_factory=dict)
    """Factors on the learning rate, by the name of a weight, as in training."""
    decay: float = 0.0
    """Share of the way back to the trained weights that each step begins with."""


class Dynamic:
    """Dynamic evaluation: after a segment is scored, one SGD step on it (Mikolov et al., 2010).

    The step changes the mean weights; a scorer that samples then samples around the new means. `restore`
    resets the weights. The decay is that of Krause et al. (2018): what was learnt from a segment is forgotten
    over the next 1 / decay.
    """

    def __init__(self, method: Method, scorer: Scorer, how: Adaptation) -> None:
        weights = method.weights()
        if how.rates and not how.rates.keys() & weights.keys():
            raise ValueError(f"no weight is called {' or '.join(how.rates)}.")
        self.model = method.model
        self.weights = list(weights.values())
        self.scorer = scorer
        self.how = how
        one = torch.ones(1)
        self.rates = [how.rates.get(name, one).to(weight) for name, weight in weights.items()]
        self.state: Any = None
        self._before = [weight.detach().clone() for weight in self.weights]

    def score(self, segment: Segment) -> WordScores:
        scores = self.scorer.score(segment)
        self._adapt(segment)
        return scores

    def _adapt(self, segment: Segment) -> None:
        segment = segment.to(device_of(self.model))
        # cuDNN's RNNs have no backward pass in evaluation mode.
        with evaluating(self.model), torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
            logits, state = self.model(segment.x, self.state)
            nats = _nats(logits, segment.y)
            loss = (nats * segment.counted.flatten()).sum() / segment.x.shape[1]
            grads = torch.autograd.grad(loss, self.weights)
        self.state = tuple(s.detach() for s in state)
        gradient_norm = torch.stack([grad.norm() for grad in grads]).norm().item()
        step = self.how.lr * min(1.0, self.how.clip / (gradient_norm + 1e-6))
        changes = zip(self.weights, grads, self.rates, self._before, strict=True)
        with torch.no_grad():
            for weight, grad, rate, before in changes:
                if self.how.decay:
                    weight.lerp_(before, self.how.decay)
                weight.addcmul_(grad, rate, value=-step)

    @torch.no_grad()
    def restore(self) -> None:
        for weight, before in zip(self.weights, self._before, strict=True):
            weight.copy_(before)


def _nats(logits: Tensor, y: Tensor) -> Tensor:
    """-log p(y) of each word, as one flat vector."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
