"""Mixtures of normals with equal weights: the components are the first axis of `means` and `variances`.

All is computed in float64, some values at a time, so that memory stays bounded. A component with variance 0
is a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

AT_ONCE = 2**17
"""Numbers to work on at a time."""
MOST_HALVINGS = 100
FINEST = 2 * torch.finfo(torch.float64).eps
SMALLEST = 1e-300  # to divide by, for a point


def cdf(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """P(value <= y)."""
    return _in_pieces(_cdf, means, variances, y)


def log_prob(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """The log density at y, in nats."""
    return _in_pieces(_log_prob, means, variances, y)


def crps(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """E|X - y| - E|X - X'| / 2, with X and X' independent draws of the mixture (Grimit et al., 2006)."""
    return _in_pieces(_crps, means, variances, y)


def quantile(means: Tensor, variances: Tensor, p: float) -> Tensor:
    """Where the distribution function is p, by bisection; the empirical quantile of points alone."""
    precision = max(torch.finfo(means.dtype).eps / 4, FINEST)

    def piece(means: Tensor, variances: Tensor, _: Tensor) -> Tensor:
        found = _quantile(means, variances, p, precision)
        points = (variances == 0).all(0)
        return torch.where(points, means.quantile(p, dim=0), found) if points.any() else found

    return _in_pieces(piece, means, variances, means.new_zeros(()))


def _in_pieces(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    means: Tensor,
    variances: Tensor,
    y: Tensor,
) -> Tensor:
    """`function` of (components, values), (components, values) and (values,), for some values at a time."""
    shape, components = means.shape[1:], len(means)
    flat = (part.reshape(components, shape.numel()) for part in (means, variances))
    size = max(1, AT_ONCE // components)
    pieces = [part.split(size, dim=-1) for part in (*flat, y.expand(shape).reshape(-1))]
    found = [function(*(part.double() for part in piece)) for piece in zip(*pieces, strict=True)]
    return torch.cat(found).view(shape).to(means.dtype)


def _cdf(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    above = (y - means) / variances.sqrt().clamp_min(SMALLEST)
    return torch.where(variances > 0, torch.special.ndtr(above), (y >= means).double()).mean(0)


def _log_prob(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    each = -((y - means).square() / variances + (2 * math.pi * variances).log()) / 2
    return each.logsumexp(0) - math.log(len(means))


def _quantile(means: Tensor, variances: Tensor, p: float, precision: float) -> Tensor:
    sd = variances.sqrt()
    own = means + sd * torch.special.ndtri(means.new_tensor(p))
    low, high = own.amin(0), own.amax(0)  # the mixture's is between those of its components
    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        if (high - low <= precision * (middle.abs() + sd.amin(0))).all():
            break
        is_low = _cdf(means, variances, middle) < p
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return (low + high) / 2


def _crps(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    count = len(means)
    to_y = _mean_size(means - y, variances).mean(0)
    pairs = _mean_size(torch.zeros_like(means), 2 * variances).sum(0) / 2  # each with itself
    for lag in range(1, count):
        difference = means[lag:] - means[:-lag]
        pairs += _mean_size(difference, variances[lag:] + variances[:-lag]).sum(0)
    return to_y - pairs / count**2


def _mean_size(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, variance)."""
    sd = variance.sqrt()
    ratio = mean / (sd * math.sqrt(2)).clamp_min(SMALLEST)
    return mean * ratio.erf() + sd * math.sqrt(2 / math.pi) * (-ratio.square()).exp()
