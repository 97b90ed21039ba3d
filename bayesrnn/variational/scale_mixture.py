"""The scale mixture: a narrow and a wide normal around zero, weight by weight [F17, sec. 5.1]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrnn.variational import bump_fit, elementary
from bayesrnn.variational.gaussian import LOG_SQRT_2PI
from bayesrnn.variational.normal import check_positive


@dataclass(frozen=True)
class Mixture:
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
        check_positive(name, sigma1=self.sigma1, sigma2=self.sigma2)

    @property
    def stddev(self) -> float:
        return math.sqrt(self.pi * self.sigma1**2 + (1 - self.pi) * self.sigma2**2)


@dataclass(frozen=True)
class ScaleMixture(Mixture):
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
        wide = Bump.of(self)
        return wide.log_wide(theta.square()) + F.softplus(wide.logit(theta))

    def score(self, theta: Tensor) -> Tensor:
        if theta.dtype.itemsize < 4:  # 2 b may be too large for half precision
            return self.score(theta.float()).to(theta.dtype)
        wide = Bump.of(self)
        narrow = elementary.sigmoid(wide.logit(theta))
        return -theta * (narrow * (2 * wide.b) + 1 / wide.sigma**2)

    def expected_log_prob(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """Closed form for the wide component plus one-dimensional quadrature for the bump.

        The bump is nearly zero outside |theta| < `reach`, and q outside mu +- 9 sigma, so Gauss-Legendre
        nodes on the overlap see whichever is narrower. Gauss-Hermite nodes follow q alone and step
        over a bump narrower than their spacing, which is the usual case here.
        """
        wide = Bump.of(self)
        low = torch.maximum(mu - 9 * sigma, torch.full_like(mu, -wide.reach))
        high = torch.minimum(mu + 9 * sigma, torch.full_like(mu, wide.reach))
        centre, radius = (low + high) / 2, ((high - low) / 2).clamp_min(0)
        total = torch.zeros_like(mu)
        for node, weight in _gauss_legendre(96):
            theta = torch.add(centre, radius, alpha=node)
            density = torch.exp(-0.5 * ((theta - mu) / sigma).square() - LOG_SQRT_2PI)
            total.addcmul_(F.softplus(wide.logit(theta)), density, value=weight)
        return wide.log_wide(mu.square() + sigma.square()) + total * (radius / sigma)

    @property
    def expected_score_error(self) -> float:
        """How far off `expected_score` may be, against its largest value; 0 if it is exact."""
        wide = Bump.of(self)
        return bump_fit.slope_error(wide.a) if wide.b > 0 else 0.0

    def expected_score(self, mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The bump's part in closed form, the bump being taken as a polynomial times a Gaussian.

        That is an approximation, with a slope within 3% for the paper's priors: see `bump_fit`.

        In units in which that Gaussian is exp(-x^2), q = N(m, v) times it is s exp(-m^2 s^2) N(m s^2, v s^2)
        with s^2 = 1 / (1 + 2 v). Under that normal the polynomial has the mean S, a sum of moments. With
        its mean y = m s^2, and S' and S'' the derivatives of S by y,

            d E[bump] / dm = s exp(-m^2 s^2) (s^2 S' - 2 y S)
            d E[bump] / dv = s exp(-m^2 s^2) (s^4 S'' / 2 - 2 s^2 y S' + (2 y^2 - s^2) S)
        """
        if mu.dtype.itemsize < 4:  # terms cancel, and half precision has few digits
            by_mu, by_sigma = self.expected_score(mu.float(), sigma.float())
            return by_mu.to(mu.dtype), by_sigma.to(mu.dtype)
        wide = Bump.of(self)
        precision = 1 / wide.sigma**2
        if wide.b <= 0:
            return mu * -precision, sigma * -precision
        c, polynomial = bump_fit.fit(wide.a)
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
class Bump:
    """A scale mixture as its wide component times a bump at zero; see `ScaleMixture`."""

    sigma: float
    log_weight: float
    a: float
    b: float

    @classmethod
    def of(cls, mixture: Mixture, group_size: int = 1) -> Bump:
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


@cache
def _gauss_legendre(order: int) -> list[tuple[float, float]]:
    """Nodes and weights of the integral of f over [-1, 1]."""
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(order)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))
