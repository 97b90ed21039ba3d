"""Priors p(theta) over the flat vector [F17, sec. 5.1].

A prior is any object with `log_prob(theta)`: a tensor whose sum is log p(theta), in nats. Everything
else is optional, and found by name:

    score(theta)                   d log p / d theta; without it autograd differentiates log_prob
    expected_log_prob(mu, sigma)   E_q[log p] per weight; without it Gauss-Hermite quadrature
    expected_score(mu, sigma)      its derivatives by mu and by sigma, for `kl_gradient="expected"`
    stddev                         a scale from which sigma can be initialised
    bind(layout)                   a prior that depends on where one weight tensor ends
    fit(mu, sigma)                 the prior re-estimated from q (empirical Bayes)
    elementwise                    true where weights are treated one by one and all alike, so that
                                   vectors may be cut into stretches and formulas compiled

So a `torch.distributions.Laplace(0.0, 0.1)` is a prior as it stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrnn.variational import elementary
from bayesrnn.variational.gaussian import LOG_SQRT_2PI
from bayesrnn.variational.layout import Layout, Slot
from bayesrnn.variational.one_pass import constant


@runtime_checkable
class Prior(Protocol):
    """What a prior must have; see the module's docstring for what it may have."""

    def log_prob(self, theta: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Normal:
    """p(theta_j) = N(0, sigma^2): weight decay whose rate the posterior's width tunes."""

    sigma: float
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_positive("Normal", sigma=self.sigma)

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
class _Mixture:
    """The numbers of a mixture of two normals around zero."""

    pi: float
    sigma1: float
    sigma2: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 < self.pi < 1:
            raise ValueError(
                f"{name}: pi={self.pi} must lie strictly between 0 and 1; "
                "for a single component use Normal."
            )
        _check_positive(name, sigma1=self.sigma1, sigma2=self.sigma2)

    @property
    def stddev(self) -> float:
        return math.sqrt(self.pi * self.sigma1**2 + (1 - self.pi) * self.sigma2**2)


@dataclass(frozen=True)
class ScaleMixture(_Mixture):
    """p(theta_j) = pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2), weight by weight [F17, eq. 18].

    Written as the wide component times a bump: with b = (1/narrow^2 - 1/wide^2) / 2 and
    a = log(odds of the narrow component) + log(wide / narrow),

        log p(theta) = log(weight_wide N(theta | 0, wide^2)) + softplus(a - b theta^2)
        score(theta) = -theta * (1 / wide^2 + 2 b sigmoid(a - b theta^2))

    The sigmoid is the narrow component's responsibility. No density is ever exponentiated, so
    neither form fails in the tails.
    """

    elementwise: ClassVar[bool] = True

    def log_prob(self, theta: Tensor) -> Tensor:
        wide = _Bump.of(self)
        return wide.log_wide(theta.square()) + F.softplus(wide.logit(theta))

    def score(self, theta: Tensor) -> Tensor:
        if theta.dtype.itemsize < 4:  # 2 b may be too large for half precision
            return self.score(theta.float()).to(theta.dtype)
        wide = _Bump.of(self)
        narrow = elementary.sigmoid(wide.logit(theta))
        return -theta * (narrow * (2 * wide.b) + 1 / wide.sigma**2)

    def expected_log_prob(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """Closed form for the wide component plus one-dimensional quadrature for the bump.

        The bump is nearly zero outside |theta| < `reach`, and q outside mu +- 9 sigma, so Gauss-Legendre
        nodes on the overlap see whichever is narrower. Gauss-Hermite nodes follow q alone and step
        over a bump narrower than their spacing, which is the usual case here.
        """
        wide = _Bump.of(self)
        low = torch.maximum(mu - 9 * sigma, torch.full_like(mu, -wide.reach))
        high = torch.minimum(mu + 9 * sigma, torch.full_like(mu, wide.reach))
        centre, radius = (low + high) / 2, ((high - low) / 2).clamp_min(0)
        total = torch.zeros_like(mu)
        for node, weight in _gauss_legendre(96):
            theta = torch.add(centre, radius, alpha=node)
            density = torch.exp(-0.5 * ((theta - mu) / sigma).square() - LOG_SQRT_2PI)
            total.addcmul_(F.softplus(wide.logit(theta)), density, value=weight)
        return wide.log_wide(mu.square() + sigma.square()) + total * (radius / sigma)

    def expected_score(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The bump's part in closed form, the bump being a polynomial times a Gaussian (`_fit_bump`).

        In units in which that Gaussian is exp(-x^2), q = N(m, v) times it is s exp(-m^2 s^2) N(m s^2, v s^2)
        with s^2 = 1 / (1 + 2 v). Under that normal the polynomial has the mean S, a sum of moments. With
        its mean y = m s^2, and S' and S'' the derivatives of S by y,

            d E[bump] / dm = s exp(-m^2 s^2) (s^2 S' - 2 y S)
            d E[bump] / dv = s exp(-m^2 s^2) (s^4 S'' / 2 - 2 s^2 y S' + (2 y^2 - s^2) S)
        """
        if mu.dtype.itemsize < 4:  # terms cancel, and half precision has few digits
            by_mu, by_sigma = self.expected_score(mu.float(), sigma.float())
            return by_mu.to(mu.dtype), by_sigma.to(mu.dtype)
        wide = _Bump.of(self)
        precision = 1 / wide.sigma**2
        if wide.b <= 0:
            return mu * -precision, sigma * -precision
        c, polynomial = _fit_bump(wide.a)
        unit = wide.b * c
        inverse = 1 + sigma.square() * (2 * unit)
        s2 = 1 / inverse
        y = mu * math.sqrt(unit) * s2
        # Neither so small that its powers are denormal, and slow, nor so large that they overflow: from
        # where on the envelope is exp(-80), and all that it multiplies as good as nothing.
        y2 = elementary.at_most(y * y + 1e-25, s2 * 80)
        # With the factor that both derivatives have: by itself it would be denormal before long.
        envelope = elementary.exp_of_minus(y2 * inverse) * (2 * unit) * s2.sqrt()
        total, by_y2, curve = _polynomial_mean(polynomial, y2, 0.5 - 0.5 * s2)  # by_y2 is S' / 2y
        by_m_over_m = envelope * (s2 * by_y2 - total) * s2
        by_v = envelope * ((s2 * curve - 4 * y2 * by_y2) * s2 + (2 * y2 - s2) * total)
        return mu * (by_m_over_m - precision), sigma * (by_v - precision)


@dataclass(frozen=True)
class RowScaleMixture(_Mixture):
    """The scale mixture with one choice of component for a whole group of weights.

    The groups are those of the authors' script: all weights that leave one input unit (a column of
    a Linear, LSTM or convolution weight), one row of an embedding, one whole bias vector.
    """

    def bind(self, layout: Layout) -> _BoundRowScaleMixture:
        return _BoundRowScaleMixture(self, layout)


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


def score(prior: Prior, theta: Tensor) -> Tensor:
    """d log p(theta) / d theta, the prior's own or by autograd."""
    own = getattr(prior, "score", None)
    if own is not None:
        return own(theta)
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(prior.log_prob(leaf).sum(), leaf)
    return gradient


def expected_log_prob(prior: Prior, mu: Tensor, sigma: Tensor) -> Tensor:
    """E_q[log p(theta)] per weight, for q = N(mu, sigma^2): the prior's own or by quadrature."""
    own = getattr(prior, "expected_log_prob", None)
    if own is not None:
        return own(mu, sigma)
    total = torch.zeros_like(mu)
    for node, weight in _gauss_hermite(64):
        log_prob = prior.log_prob(torch.add(mu, sigma, alpha=node))
        if log_prob.shape != mu.shape:
            raise ValueError(
                f"{type(prior).__name__} ties weights together, so its KL is no sum of "
                "one-dimensional integrals; use kl(draw), which estimates it from a sample."
            )
        total.add_(log_prob, alpha=weight)
    return total


def bind(prior: Prior | RowScaleMixture | EmpiricalNormal, layout: Layout) -> Any:
    """The prior as it applies to vectors of this layout."""
    own = getattr(prior, "bind", None)
    return own(layout) if own is not None else prior


def to_config(prior: object) -> dict[str, Any] | None:
    """Name and hyper-parameters, enough for `from_config`; None for a prior of the user's own."""
    if not isinstance(prior, _NAMED):
        return None
    values = {k: v if isinstance(v, str) else float(v) for k, v in vars(prior).items()}
    return {"name": type(prior).__name__, **values}


def from_config(config: dict[str, Any]) -> Any:
    """The prior that `to_config` described."""
    known = {cls.__name__: cls for cls in _NAMED}
    values = dict(config)
    name = values.pop("name", None)
    if name not in known:
        raise ValueError(f"unknown prior {name!r}; known are {', '.join(known)}.")
    try:
        return known[name](**values)
    except TypeError as error:
        raise ValueError(f"prior {name} cannot be made from {values}: {error}") from None


_NAMED = (Normal, ScaleMixture, RowScaleMixture, EmpiricalNormal)


@dataclass(frozen=True)
class _Bump:
    """A scale mixture as its wide component times a bump at zero; see `ScaleMixture`."""

    sigma: float
    log_weight: float
    a: float
    b: float

    @classmethod
    def of(cls, mixture: _Mixture, group_size: int = 1) -> _Bump:
        weighted = [(mixture.sigma1, mixture.pi), (mixture.sigma2, 1 - mixture.pi)]
        (narrow, p_narrow), (wide, p_wide) = sorted(weighted)
        return cls(
            sigma=wide,
            log_weight=math.log(p_wide),
            a=math.log(p_narrow / p_wide) + group_size * math.log(wide / narrow),
            b=0.5 * (1 / narrow**2 - 1 / wide**2),
        )

    @property
    def reach(self) -> float:
        """|theta| beyond which the bump, under exp(a - b theta^2), is under 1e-18."""
        return math.sqrt((max(self.a, 0.0) + 42) / self.b) if self.b > 0 else math.inf

    def logit(self, theta: Tensor) -> Tensor:
        """a - b theta^2, the log-odds of the narrow component."""
        return theta.square().mul_(-self.b).add_(self.a)

    def log_wide(self, theta_squared: Tensor) -> Tensor:
        constant = self.log_weight - math.log(self.sigma) - LOG_SQRT_2PI
        return theta_squared * (-0.5 / self.sigma**2) + constant


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
            wide = _Bump.of(self.mixture, group_size=size)
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
            wide = _Bump.of(self.mixture, group_size=weights.shape[dim])
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


def _polynomial_mean(
    polynomial: list[float], y2: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """S = E[sum_j p_j x^(2j)] for x ~ N(y, variance), dS/d(y^2), and half S's second derivative by y.

    E[x^(2j)] = sum_i binomial(2j, 2i) (2j - 2i - 1)!! variance^(j-i) y^(2i), so S is a polynomial in y^2
    whose coefficients are polynomials in the variance.
    """
    degree = len(polynomial) - 1
    powers = []
    for i in range(degree + 1):
        terms = [
            p * math.comb(2 * j, 2 * i) * math.prod(range(1, 2 * (j - i), 2))
            for j, p in enumerate(polynomial)
            if j >= i
        ]
        powers.append(elementary.polynomial(variance, terms))
    total, by_y2, half_curve = elementary.polynomial_and_derivatives(y2, powers)
    return total, by_y2, by_y2 + 4 * y2 * half_curve


@constant
def _fit_bump(a: float) -> tuple[float, list[float]]:
    """`_fitted_bump`, a constant to the compiler."""
    return _fitted_bump(a)


@cache
def _fitted_bump(a: float) -> tuple[float, list[float]]:
    """softplus(a - x^2) as a polynomial in c x^2 times exp(-c x^2), by least squares.

    Returns c and the polynomial's coefficients: as many as keep the slope, which is what is used,
    within 2% of its largest value, but nine at most: enough for 3% over the paper's grid of priors, and
    0.4% of the bump's height. What is descended is exactly the KL to a prior that much away from the mixture.
    """
    import numpy as np

    scale = max(a, 1.0)
    x = np.linspace(0, math.sqrt(max(a, 0.0) + 14), 500)
    t = x**2 / scale
    height, slope = np.logaddexp(0, a - x**2), -2 * x / (1 + np.exp(x**2 - a))
    target = np.concatenate([height, slope])

    def solve(c: float, degree: int) -> tuple[float, float, Any]:
        """The squared error, the largest of the slope against the largest slope, the coefficients."""
        powers = np.stack([t**j for j in range(degree + 1)], 1)
        lower = np.stack([j * t ** max(j - 1, 0) for j in range(degree + 1)], 1)
        slopes = (lower / scale - c * powers) * 2 * x[:, None]
        basis = np.concatenate([powers, slopes]) * np.exp(-c * np.concatenate([x, x]) ** 2)[:, None]
        solution = np.linalg.lstsq(basis, target)[0]
        error = basis @ solution - target
        worst = np.abs(error[len(x) :]).max() / np.abs(slope).max()
        return float(np.square(error).sum()), float(worst), solution

    c, solution = 1.0, []
    for degree in range(2, 9):
        c = float(min(np.linspace(0.2, 2.4, 45), key=lambda c: solve(c, degree)[0]))
        _, worst, solution = solve(c, degree)
        if worst < 0.02:
            break
    return c, [float(value) / (c * scale) ** j for j, value in enumerate(solution)]


@cache
def _gauss_legendre(order: int) -> list[tuple[float, float]]:
    """Nodes and weights of the integral of f over [-1, 1]."""
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(order)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


@cache
def _gauss_hermite(order: int) -> list[tuple[float, float]]:
    """Nodes and weights of E[f(z)] for z ~ N(0, 1)."""
    from numpy.polynomial.hermite_e import hermegauss

    nodes, weights = hermegauss(order)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))


def _check_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}: {name}={value} must be a positive, finite number.")
