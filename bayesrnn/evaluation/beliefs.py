"""Statistics of predictive distributions over words: probability, entropy, confidence and more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrnn.ensemble import LogMeanExp, ProbabilitySum


@dataclass(frozen=True)
class Beliefs:
    """Statistics of an ensemble's average for words of a text, in nats: tensors of the words' shape."""

    log_prob: Tensor
    """log p of the true word."""
    entropy: Tensor
    expected_entropy: Tensor
    """The mean of the models' entropies."""
    confidence: Tensor
    """Probability of the likeliest word."""
    correct: Tensor
    """Whether the likeliest word is the true one."""
    brier: Tensor
    """sum_w (p_w - [w is true])^2."""

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0)


class BeliefSum:
    """Sums over the models so far, for the true words `y`; log probabilities have one more axis.

    The sums are where the models compute; the statistics are on the CPU.
    """

    def __init__(self, y: Tensor) -> None:
        self.y = y[..., None]
        self.distributions = ProbabilitySum()
        self.log_prob = LogMeanExp()

    def add(self, log_probs: Tensor) -> None:
        self.y = self.y.to(log_probs.device)
        chosen = log_probs.gather(-1, self.y).squeeze(-1)
        if chosen.isnan().any():
            raise ValueError("the model's log probabilities are not numbers; has it diverged?")
        self.log_prob.add(chosen)
        self.distributions.add(log_probs)

    def average(self) -> Beliefs:
        """The statistics of the average p = P / count, with P the sum over `count` models."""
        total, count = self.distributions.probs, self.distributions.count
        highest, likeliest = total.max(-1)
        chosen = total.gather(-1, self.y).squeeze(-1)
        return Beliefs(
            log_prob=self.log_prob.value.cpu(),
            entropy=self.distributions.entropy().cpu(),
            expected_entropy=self.distributions.expected_entropy().cpu(),
            confidence=(highest / count).cpu(),
            correct=(likeliest == self.y.squeeze(-1)).cpu(),
            brier=(torch.linalg.vecdot(total, total) / count**2 - 2 * chosen / count + 1).cpu(),
        )

    def over_ranks(self, vocabulary: int) -> BeliefSum:
        """The sums over the models of all ranks, of which some may have none yet."""
        total = BeliefSum(self.y.squeeze(-1).cpu())
        total.distributions = self.distributions.over_ranks((*self.y.shape[:-1], vocabulary))
        total.log_prob = self.log_prob.over_ranks(self.y.shape[:-1])
        return total
