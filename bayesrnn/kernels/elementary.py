"""Elementary functions in the forms that cost least inside compiled code.

The compiler calls a library for exp and log, which keeps the processor from working ahead; its
softplus is slower still, and its expm1 is exp(x) - 1, which is wrong for small x. Here they are
polynomials (least largest relative error on the range given) and the exponent bits of float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrnn.variational.elementary import LARGEST, compiled_form, polynomial

# expm1(r) / r for |r| < log(2) / 2, to 1.1e-8
_EXPM1 = [1.00000001, 0.499999981, 0.166665062, 0.0416671362, 0.00836906988, 0.00138888725]
# log(1 + e) / e for e in (0, 1), to 3.1e-8
_LOG1P = [0.99999997, -0.499994931, 0.333190967, -0.248429815, 0.19106004]
_LOG1P += [-0.136632401, 0.0782258859, -0.0295051987, 0.00523268435]
# The same for 1 + e in (sqrt(1/2), sqrt(2)), to 2.7e-8
_LOG = [0.999999974, -0.49999988, 0.333341856, -0.25002074, 0.199568335]
_LOG += [-0.165623938, 0.149522681, -0.143668386, 0.0872234617]


@compiled_form
def softplus(x: Tensor) -> Tensor:
    """max(x, 0) + log(1 + e) with e = exp(-|x|)."""
    e = exp_of_minus(_bounded(x.abs()))
    return torch.relu(x) + e * polynomial(e, _LOG1P)


@compiled_form
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    e = exp_of_minus(_bounded(x.abs()))
    t = e / (1 + e)
    return torch.where(x < 0, t, 1 - t)


@compiled_form
def one_minus_exp(x: Tensor) -> Tensor:
    """1 - exp(-x), in every precision."""
    if x.dtype == torch.float64:
        t = torch.tanh(x / 2)
        return 2 * t / (1 + t)
    power, rest = _minus_parts(_bounded(x.float()))
    return ((1 - power) - rest).to(x.dtype)


@compiled_form
def exp_of_minus(x: Tensor) -> Tensor:
    """exp(-x)."""
    power, rest = _minus_parts(x)
    return power + rest


def _minus_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-x) = 2^n + 2^n expm1(r) with -x = n log(2) + r: its two terms, of which tiny x leave 1 and -x."""
    # Numbers around this one are a whole apart, and 127 + n, the exponent of 2^n, is in their last bits.
    origin = 1.5 * 2**23 + 127
    rounded = x * (-1 / math.log(2)) + origin
    power = (rounded.view(torch.int32) << 23).view(torch.float32)
    n = rounded - origin
    # n log(2) in two parts, the first with few digits, so that no digit of r is lost.
    r = (n * -0.693359375 - x) - n * -2.12194440e-4
    # Near 87 the second is denormal; joined with the sum that follows, as it is compiled, that costs nothing.
    return power, power * (r * polynomial(r, _EXPM1))


def log_by_bits(x: Tensor) -> Tensor:
    """n log(2) + log(m) with x = 2^n m, m around 1."""
    bits = x.view(torch.int32)
    n = (bits - 0x3F3504F3) >> 23  # the bits of sqrt(1/2)
    f = (bits - (n << 23)).view(torch.float32) - 1
    return n.to(torch.float32) * math.log(2) + f * polynomial(f, _LOG)


def cos_sin_series(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Taylor's series at a quarter of the angle, which is then doubled twice."""
    t = angle * 0.25
    q = t * t
    cos = polynomial(q, [1, -1 / 2, 1 / 24, -1 / 720, 1 / 40320])
    sin = t * polynomial(q, [1, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880])
    for _ in range(2):
        cos, sin = 1 - 2 * sin * sin, 2 * sin * cos
    return cos, sin


@compiled_form
def at_most(x: Tensor, bound: Tensor) -> Tensor:
    """By their bits, which are in the same order as they are; as floats, NaN would cost three instructions.

    Compiled, NaN becomes the bound: what is made of the result must meet x once more.
    """
    if not torch.compiler.is_compiling():
        return torch.minimum(x, bound)
    return torch.minimum(x.view(torch.int32), bound.view(torch.int32)).view(torch.float32)


def _bounded(x: Tensor) -> Tensor:
    return at_most(x, torch.full_like(x, LARGEST))


def log(x: Tensor) -> Tensor:
    """log(x) for normal x > 0."""
    return log_by_bits(x) if _compiling_float32(x) else torch.log(x)


def cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of an angle within +-pi."""
    return cos_sin_series(angle) if _compiling_float32(angle) else (angle.cos(), angle.sin())


def _compiling_float32(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and x.dtype == torch.float32
