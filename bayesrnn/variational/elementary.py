"""The elementary functions of the formulas, as torch has them, each with the range it is used on.

Inside compiled code a float32 function may be taken in another form, which costs less there; whoever compiles
provides it with `compiled_form` (see `bayesrnn.kernels.elementary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 87.0
"""exp(-87) is the last power that is a normal number of float32: smaller ones are slow to compute with."""

_compiled_forms: dict[str, Callable[..., Tensor]] = {}


def compiled_form(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Mark a function as the compiled form of the one here that has its name."""
    _compiled_forms[form.__name__] = form
    return form


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), kept a normal number; compiled, from x = -87 down as at -87."""
    if _compiling_float32(x):
        return _compiled_forms["softplus"](x)
    return F.softplus(x).clamp_min(torch.finfo(x.dtype).tiny)


def one_minus_exp(x: Tensor) -> Tensor:
    """1 - exp(-x) for x >= 0, accurate for tiny x too."""
    if torch.compiler.is_compiling():  # the compiler's own expm1 is exp(x) - 1
        return _compiled_forms["one_minus_exp"](x)
    return -torch.expm1(-x)


def exp_of_minus(x: Tensor) -> Tensor:
    """exp(-x) for x from 0 to 87."""
    return _compiled_forms["exp_of_minus"](x) if _compiling_float32(x) else torch.exp(-x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), from x = -87 down as at -87."""
    if _compiling_float32(x):
        return _compiled_forms["sigmoid"](x)
    return torch.sigmoid(x.clamp_min(-LARGEST))


def at_most(x: Tensor, bound: Tensor) -> Tensor:
    """The smaller of two numbers, neither of them negative."""
    return (
        _compiled_forms["at_most"](x, bound) if _compiling_float32(x) else torch.minimum(x, bound)
    )


def polynomial(x: Tensor, coefficients: Sequence[float | Tensor]) -> Tensor:
    """By Horner's rule, the constant first."""
    value = torch.zeros_like(x) + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def polynomial_and_derivatives(
    x: Tensor, coefficients: Sequence[float | Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Its value, slope, and half its second derivative, each by Horner's rule; its degree is 2 at least."""
    *lower, third, second, top = coefficients
    half_curve = torch.zeros_like(x) + top
    value = half_curve * x + second
    slope = half_curve * x + value
    value = value * x + third
    for coefficient in reversed(lower):
        half_curve = half_curve * x + slope
        slope = slope * x + value
        value = value * x + coefficient
    return value, slope, half_curve


def _compiling_float32(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and x.dtype == torch.float32
