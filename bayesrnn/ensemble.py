"""The average over samples of the weights: all predictions that use more than one are averaged here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from bayesrnn import ranks
from bayesrnn.devices import in_float32

ROWS_AT_ONCE = 16
"""Distributions over a vocabulary to sum up at a time."""


class LogMeanExp:
    """The log of a mean of probabilities, from their logs one after the other."""

    def __init__(self) -> None:
        self.count = 0
        self._log_sum: Tensor | None = None

    def add(self, log_probs: Tensor) -> None:
        self.count += 1
        total = self._log_sum
        self._log_sum = log_probs if total is None else torch.logaddexp(total, log_probs)

    @property
    def log_sum(self) -> Tensor:
        """The log of the sum."""
        assert self._log_sum is not None
        return self._log_sum

    @property
    def value(self) -> Tensor:
        return self.log_sum - math.log(self.count)

    def over_ranks(self, shape: Sequence[int]) -> LogMeanExp:
        """With the terms of all ranks, of which some may have none yet."""
        total = LogMeanExp()
        own = torch.full(shape, -math.inf) if self._log_sum is None else self._log_sum.cpu()
        total._log_sum = ranks.gather(own[None]).logsumexp(0)
        total.count = int(ranks.gather(torch.tensor([self.count])).sum())
        return total


class PredictiveAverage:
    """The predictive distribution over classes (the last axis), and what the samples disagree about.

    entropy is that of the average, expected_entropy the average of the samples' own; what is between
    them is the mutual information of the class and the weights.
    """

    def __init__(self) -> None:
        self._log_probs = LogMeanExp()
        self._entropy = Moments()

    def add(self, log_probs: Tensor) -> None:
        """One sample's log probabilities (..., classes)."""
        self._log_probs.add(log_probs)
        self._entropy.add(entropy(log_probs))

    @property
    def log_probs(self) -> Tensor:
        return self._log_probs.value

    @property
    def entropy(self) -> Tensor:
        return entropy(self.log_probs)

    @property
    def expected_entropy(self) -> Tensor:
        return self._entropy.mean


class ProbabilitySum:
    """As `PredictiveAverage`, for distributions so large that memory decides: over a whole vocabulary.

    The probabilities themselves are summed, in place and a few rows at a time, so that what is read several
    times stays in the nearest cache.
    """

    def __init__(self) -> None:
        self.count = 0
        self._probs: Tensor | None = None
        self._entropy: Tensor | None = None

    def add(self, log_probs: Tensor) -> None:
        """One sample's log probabilities (..., classes)."""
        log_probs = log_probs.contiguous()  # so that the rows below are views
        self.count += 1
        if self._probs is None:
            self._probs = torch.zeros_like(log_probs)
            self._entropy = log_probs.new_zeros(log_probs.shape[:-1])
        assert self._entropy is not None
        rows = (log_probs.flatten(0, -2), self._probs.flatten(0, -2), self._entropy.flatten())
        for log_p, total, own in zip(*(part.split(ROWS_AT_ONCE) for part in rows), strict=True):
            probs = log_p.exp()
            total.add_(probs)
            own.sub_(_sum_of_logs(probs, log_p))

    @property
    def probs(self) -> Tensor:
        """The sum of the samples' probabilities."""
        assert self._probs is not None
        return self._probs

    def over_ranks(self, shape: Sequence[int]) -> ProbabilitySum:
        """With the samples of all ranks, of which some may have none yet; `shape` is that of log_probs."""
        total = ProbabilitySum()
        total.count = int(ranks.gather(torch.tensor([self.count])).sum())
        total._probs = torch.zeros(shape) if self._probs is None else self._probs.cpu().clone()
        none = torch.zeros(shape[:-1])
        total._entropy = none if self._entropy is None else self._entropy.cpu().clone()
        ranks.sum_(total._probs, total._entropy)
        return total

    def expected_entropy(self) -> Tensor:
        assert self._entropy is not None
        return self._entropy / self.count

    def entropy(self) -> Tensor:
        """With P the sum over n samples, -sum p log p = log n - sum P log P / n."""
        own = self.expected_entropy()
        if self.count == 1:
            return own
        rows = self.probs.flatten(0, -2).split(ROWS_AT_ONCE)
        logs = torch.cat([_sum_of_logs(row.log(), row) for row in rows]).view(own.shape)
        return math.log(self.count) - logs / self.count


class Moments:
    """The mean and variance of tensors, one after the other (Welford)."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None  # the sum of squared deviations

    def add(self, value: Tensor) -> None:
        self.count += 1
        if self._mean is None or self._squares is None:
            self._mean, self._squares = value, torch.zeros_like(value)
        else:
            delta = value - self._mean
            self._mean = self._mean + delta / self.count
            self._squares = self._squares + delta * (value - self._mean)

    @property
    def mean(self) -> Tensor:
        assert self._mean is not None
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Unbiased; 0 for one value."""
        assert self._squares is not None
        return self._squares / max(self.count - 1, 1)


def entropy(log_probs: Tensor) -> Tensor:
    """-sum p log p over the last axis, in nats."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def log_softmax(logits: Tensor) -> Tensor:
    """Log probabilities in float32 at least: in half precision they would not add up to one."""
    return torch.log_softmax(in_float32(logits), dim=-1)


def sample_generators(samples: int, seed: int, device: torch.device) -> list[Generator]:
    """One generator for each weight sample; the first of many are the same as of few."""
    seeds = torch.randint(2**62, (samples,), generator=torch.Generator().manual_seed(seed))
    return [torch.Generator(device).manual_seed(s) for s in seeds.tolist()]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block every submodule is in evaluation mode; after it, in the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _sum_of_logs(one: Tensor, other: Tensor) -> Tensor:
    """sum p log p, where 0 log 0 = 0; `one` of the two is used up."""
    products = one.mul_(other).sum(-1)
    if products.isnan().any():  # some word has no probability at all
        products = one.nan_to_num_(0.0).sum(-1)
    return products
