"""An approximation: the bump of a scale mixture as a polynomial times a Gaussian.

E_q[log p] of a scale mixture has no closed form, because of the bump softplus(a - b theta^2). With a
polynomial times a Gaussian in its place it has one. This is the one approximation in the formulas: the
slope of the fitted bump, which is what gradients are made of, is off by up to 3% of its largest value over
the paper's grid of priors, and the bump's height by 0.4%. What is descended is exactly the KL to a prior
that much away from the mixture. For more extreme mixtures the fit gets worse (20% where the widths are e^20
apart); a posterior refuses to train with one that is more than 5% off.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any


def fit(a: float) -> tuple[float, list[float]]:
    """c and the coefficients of the polynomial in c x^2 that, times exp(-c x^2), is softplus(a - x^2)."""
    c, coefficients, _ = _fitted(a)
    return c, coefficients


def slope_error(a: float) -> float:
    """The largest error of the fitted slope, against the largest slope."""
    return _fitted(a)[2]


@cache
def _fitted(a: float) -> tuple[float, list[float], float]:
    """By least squares on height and slope, with as many coefficients as bring the slope's error under 2%,
    but nine at most."""
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

    c, worst, solution = 1.0, math.inf, []
    for degree in range(2, 9):
        c = float(min(np.linspace(0.2, 2.4, 45), key=lambda c: solve(c, degree)[0]))
        _, worst, solution = solve(c, degree)
        if worst < 0.02:
            break
    return c, [float(value) / (c * scale) ** j for j, value in enumerate(solution)], worst
