"""The error, likelihood and uncertainty of a classifier or of an ensemble of its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrnn.devices import device_of
from bayesrnn.ensemble import PredictiveAverage, entropy, evaluating, log_softmax
from bayesrnn.evaluation.calibration import Calibration, summarise
from bayesrnn.methods import Member

EXAMPLES_AT_ONCE = 2000


@dataclass(frozen=True)
class Classified:
    """An ensemble's predictions for a set of examples, in nats."""

    log_probs: Tensor  # (examples, classes)
    expected_entropy: Tensor
    y: Tensor

    @property
    def error(self) -> float:
        """The share of examples that were misclassified."""
        return (self.log_probs.argmax(-1) != self.y).double().mean().item()

    @property
    def nats(self) -> float:
        """Mean -log p of the true class."""
        return F.nll_loss(self.log_probs.double(), self.y).item()

    @property
    def entropy(self) -> Tensor:
        return entropy(self.log_probs)

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def calibration(self) -> Calibration:
        probs = self.log_probs.exp()
        confidence, guess = probs.max(-1)
        right = F.one_hot(self.y, probs.shape[-1])
        nats = -self.log_probs.gather(1, self.y[:, None]).squeeze(1)
        brier = (probs - right).square().sum(-1)
        return summarise(confidence, (guess == self.y).float(), nats, brier)


@torch.no_grad()
def classify(model: nn.Module, members: Sequence[Member], x: Tensor, y: Tensor) -> Classified:
    """Average the members' probabilities for every example."""
    average, device = PredictiveAverage(), device_of(model)
    with evaluating(model):
        for member in members:
            with member():
                parts = [model(part.to(device)) for part in x.split(EXAMPLES_AT_ONCE)]
            average.add(log_softmax(torch.cat(parts)).cpu())
    return Classified(average.log_probs, average.expected_entropy, y)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Rotate images (N, 1, H, W) about their centre, filling with black."""
    angle = math.radians(degrees)
    matrix = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    )
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)
