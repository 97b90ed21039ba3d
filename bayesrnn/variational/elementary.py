"""Elementary functions, in torch's form or, inside compiled passes, in one that costs less there.

The compiler turns torch's softplus into a slow logarithm, and its expm1 into exp(x) - 1, which is wrong
for small x. Here are series of a few multiplications, to the rounding of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return softplus_series(x) if _compiled_float32(x) else F.softplus(x)


def one_minus_exp(x: Tensor) -> Tensor:
    """1 - exp(-x) for x >= 0, accurate for tiny x too."""
    if not torch.compiler.is_compiling():
        return -torch.expm1(-x)
    if x.dtype == torch.float64:
        t = torch.tanh(x / 2)
        return 2 * t / (1 + t)
    return one_minus_exp_series(x.float()).to(x.dtype)


def cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of an angle within +-pi."""
    return cos_sin_series(angle) if _compiled_float32(angle) else (angle.cos(), angle.sin())


def softplus_series(x: Tensor) -> Tensor:
    """max(x, 0) + log(1 + e) with e = exp(-|x|), by log(1 + e) = 2 artanh(e / (2 + e))."""
    e = torch.exp(-x.abs())
    s = e / (2 + e)
    return torch.relu(x) + 2 * s * _polynomial(s * s, [1 / k for k in range(1, 17, 2)])


def one_minus_exp_series(x: Tensor) -> Tensor:
    """x - x^2/2! + x^3/3! - ... below 0.3, where 1 - exp(-x) would cancel."""
    series = x * _polynomial(x, [1, -1 / 2, 1 / 6, -1 / 24, 1 / 120, -1 / 720, 1 / 5040])
    return torch.where(x < 0.3, series, 1 - torch.exp(-x))


def cos_sin_series(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Taylor's series at a quarter of the angle, which is then doubled twice."""
    t = angle * 0.25
    q = t * t
    cos = _polynomial(q, [1, -1 / 2, 1 / 24, -1 / 720, 1 / 40320])
    sin = t * _polynomial(q, [1, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880])
    for _ in range(2):
        cos, sin = 1 - 2 * sin * sin, 2 * sin * cos
    return cos, sin


def _polynomial(x: Tensor, coefficients: list[float]) -> Tensor:
    """By Horner's rule, the constant first."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def _compiled_float32(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and x.dtype == torch.float32
