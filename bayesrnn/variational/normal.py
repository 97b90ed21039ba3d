"""Normal priors: of a given width, or of one learnt by empirical Bayes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from bayesrnn.variational.gaussian import LOG_SQRT_2PI

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout


@dataclass(frozen=True)
class Normal:
    """p(theta_j) = N(0, sigma^2): weight decay whose rate the posterior's width tunes."""

    sigma: float
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("Normal", sigma=self.sigma)

    @property
    def stddev(self) -> float:
        return self.sigma

    def log_prob(self, theta: Tensor) -> Tensor:
        return -0.5 * (theta / self.sigma).square() - (math.log(self.sigma) + LOG_SQRT_2PI)

    def score(self, theta: Tensor) -> Tensor:
        return -theta / self.sigma**2

    def expected_log_prob(self, mu: Tensor, sigma: Tensor) -> Tensor:
        second_moment = mu.square() + sigma.square()
        return -0.5 * second_moment / self.sigma**2 - (math.log(self.sigma) + LOG_SQRT_2PI)

    def expected_score(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return -mu / self.sigma**2, -sigma / self.sigma**2


@dataclass(frozen=True)
class EmpiricalNormal:
    """p(theta_j) = N(0, s^2) with s learnt by empirical Bayes, for each tensor or for the model.

    The s that minimises KL[q || p] is known, s^2 = mean(mu^2 + sigma^2), so it is set and not
    descended to: no learning rate, and no state beside the posterior's own.
    """

    per: Literal["tensor", "model"] = "tensor"

    def __post_init__(self) -> None:
        if self.per not in ("tensor", "model"):
            raise ValueError(f"EmpiricalNormal: per={self.per!r}; use 'tensor' or 'model'.")

    def bind(self, layout: Layout) -> _BoundEmpiricalNormal:
        return _BoundEmpiricalNormal(self.per, layout)


@dataclass(frozen=True)
class _BoundEmpiricalNormal:
    per: str
    layout: Layout

    def fit(self, mu: Tensor, sigma: Tensor) -> _SegmentNormal:
        second_moment = mu.square() + sigma.square()
        whole = [(0, self.layout.size, self.layout.fixed)]
        each = [
            (slot.offset, slot.size, tuple(s for s in [slot.fixed_span] if s))
            for slot in self.layout
        ]
        sizes, variances = [], []
        for offset, size, fixed in whole if self.per == "model" else each:
            padding = [second_moment[span] for span in fixed]
            total = second_moment[offset : offset + size].sum() - sum(p.sum() for p in padding)
            count = size - sum(p.numel() for p in padding)
            sizes.append(size)
            variances.append(total / max(count, 1))
        tiny = torch.finfo(mu.dtype).tiny
        return _SegmentNormal(tuple(sizes), torch.stack(variances).clamp_min(tiny))


@dataclass(frozen=True)
class _SegmentNormal:
    """N(0, s^2) with another s for each consecutive stretch of the flat vector."""

    sizes: tuple[int, ...]
    variances: Tensor = field(repr=False)

    @property
    def stddev(self) -> Tensor:
        """s for every weight."""
        scales = self.variances.sqrt()
        return torch.cat([s.expand(size) for s, size in zip(scales, self.sizes, strict=True)])

    def log_prob(self, theta: Tensor) -> Tensor:
        s = self.stddev
        return -0.5 * (theta / s).square() - s.log() - LOG_SQRT_2PI

    def score(self, theta: Tensor) -> Tensor:
        return -theta / self.stddev.square()

    def expected_log_prob(self, mu: Tensor, sigma: Tensor) -> Tensor:
        s = self.stddev
        return -0.5 * (mu.square() + sigma.square()) / s.square() - s.log() - LOG_SQRT_2PI

    def expected_score(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        precision = 1 / self.stddev.square()
        return -mu * precision, -sigma * precision


def check_positive(owner: str, **values: float) -> None:
    """Raise unless every value is a positive, finite number."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}: {name}={value} must be a positive, finite number.")
