"""The scale mixture with one component for a whole group of weights, as in the authors' script."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrnn.variational.gaussian import LOG_SQRT_2PI
from bayesrnn.variational.scale_mixture import Bump, Mixture

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout, Slot


@dataclass(frozen=True)
class RowScaleMixture(Mixture):
    """The scale mixture with one choice of component for a whole group of weights.

    The groups are those of the authors' script: all weights that leave one input unit (a column of
    a Linear, LSTM or convolution weight), one row of an embedding, one whole bias vector.
    """

    def bind(self, layout: Layout) -> _BoundRowScaleMixture:
        return _BoundRowScaleMixture(self, layout)


@dataclass(frozen=True)
class _BoundRowScaleMixture:
    mixture: RowScaleMixture
    layout: Layout

    @property
    def stddev(self) -> float:
        return self.mixture.stddev

    def log_prob(self, theta: Tensor) -> Tensor:
        """log p of every group, one after the other; 0 for a padding row."""
        parts = []
        for slot in self.layout:
            weights, dim = _groups(theta, slot)
            size = weights.shape[dim]
            wide = Bump.of(self.mixture, group_size=size)
            squares = weights.square().sum(dim)
            constant = wide.log_weight - size * (math.log(wide.sigma) + LOG_SQRT_2PI)
            log_wide = squares * (-0.5 / wide.sigma**2) + constant
            part = log_wide + F.softplus(wide.a - wide.b * squares)
            if slot.fixed_row is not None:
                part[slot.fixed_row] = 0
            parts.append(part)
        return torch.cat(parts)

    def score(self, theta: Tensor) -> Tensor:
        parts = []
        for slot in self.layout:
            weights, dim = _groups(theta, slot)
            wide = Bump.of(self.mixture, group_size=weights.shape[dim])
            responsibility = torch.sigmoid(
                wide.a - wide.b * weights.square().sum(dim, keepdim=True)
            )
            precision = 1 / wide.sigma**2 + 2 * wide.b * responsibility
            parts.append((-weights * precision).flatten())
        return torch.cat(parts)


def _groups(theta: Tensor, slot: Slot) -> tuple[Tensor, int]:
    """A slot as a matrix, and the axis along which its weights share one mixture component."""
    rows = slot.shape[0] if slot.shape else 1
    return theta[slot.span].view(rows, -1), 1 if slot.kind == "embedding" else 0
