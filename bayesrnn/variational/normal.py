"""Normal priors: of a given width, or of one learnt by empirical Bayes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from bayesrnn.variational.gaussian import LOG_SQRT_2PI

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout


class _NormalFormulas:
    """What they all compute, for p(theta_j) = N(m_j, s_j^2)."""

    def moments(self) -> tuple[float | Tensor, float | Tensor]:
        """m and s, numbers or one for each weight."""
        raise NotImplementedError

    def log_prob(self, theta: Tensor) -> Tensor:
        m, s = self.moments()
        return -0.5 * ((theta - m) / s).square() - _log_normaliser(s)

    def score(self, theta: Tensor) -> Tensor:
        m, s = self.moments()
        return (m - theta) / s**2

    def expected_log_prob(self, mu: Tensor, sigma: Tensor) -> Tensor:
        m, s = self.moments()
        return -0.5 * ((mu - m).square() + sigma.square()) / s**2 - _log_normaliser(s)

    def expected_score(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        m, s = self.moments()
        return (m - mu) / s**2, -sigma / s**2


def _log_normaliser(s: float | Tensor) -> float | Tensor:
    return (s.log() if isinstance(s, Tensor) else math.log(s)) + LOG_SQRT_2PI


@dataclass(frozen=True)
class Normal(_NormalFormulas):
    """p(theta_j) = N(0, sigma^2): weight decay whose rate the posterior's width tunes."""

    sigma: float
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("Normal", sigma=self.sigma)

    @property
    def stddev(self) -> float:
        return self.sigma

    def moments(self) -> tuple[float, float]:
        return 0.0, self.sigma


@dataclass(frozen=True, eq=False, repr=False)
class VectorNormal(_NormalFormulas):
    """p(theta_j) = N(mean_j, stddev_j^2), another one for each weight of a flat vector."""

    stddev: Tensor
    mean: Tensor | float = 0.0

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        return (self.stddev, self.mean) if isinstance(self.mean, Tensor) else (self.stddev,)

    def moments(self) -> tuple[Tensor | float, Tensor]:
        return self.mean, self.stddev

    def on(self, span: slice) -> VectorNormal:
        """The same for a stretch of the vector."""
        return VectorNormal(*(vector[span] for vector in self.vectors))

    def to(self, like: Tensor) -> VectorNormal:
        """The same with the device and dtype of another vector."""
        return VectorNormal(*(vector.to(like.device, like.dtype) for vector in self.vectors))


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

    def fit(self, mu: Tensor, sigma: Tensor) -> VectorNormal:
        second_moment = mu.square() + sigma.square()
        whole = [(0, self.layout.size, self.layout.fixed)]
        each = [
            (slot.offset, slot.size, tuple(s for s in [slot.fixed_span] if s))
            for slot in self.layout
        ]
        tiny = torch.finfo(mu.dtype).tiny
        parts = []
        for offset, size, fixed in whole if self.per == "model" else each:
            padding = [second_moment[span] for span in fixed]
            total = second_moment[offset : offset + size].sum() - sum(p.sum() for p in padding)
            count = size - sum(p.numel() for p in padding)
            parts.append((total / max(count, 1)).clamp_min(tiny).sqrt().expand(size))
        return VectorNormal(torch.cat(parts))


def check_positive(owner: str, **values: float) -> None:
    """Raise unless every value is a positive, finite number."""
    for name, value in values.items():
        if not (isinstance(value, int | float) and value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}: {name}={value} must be a positive, finite number.")
