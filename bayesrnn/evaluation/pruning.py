"""Pruning curves: a loss against the share of weights dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayesrnn.pruning import DropOrder

DROPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995)
"""The shares at which a curve is measured, denser where curves usually bend."""

Measure = Callable[[], float]
"""Measures the model as it is now, such as its perplexity: lower is better."""


def curve(
    order: DropOrder,
    measure: Measure,
    drops: Sequence[float] = DROPS,
    progress: Callable[[float], None] = lambda drop: None,
) -> dict[float, float]:
    """The measurement at each share of weights dropped."""
    points = {}
    for drop in drops:
        with order.dropped(drop):
            points[drop] = measure()
        progress(drop)
    return points


def largest_drop(
    order: DropOrder, measure: Measure, points: dict[float, float], limit: float, steps: int = 5
) -> float:
    """The largest share of weights dropped with a measurement within `limit`, by bisection.

    The search is between the first point of the curve that exceeds the limit and the point before it, so
    a later dip below the limit is ignored.
    """
    drops = sorted(points)
    over = next((i for i, drop in enumerate(drops) if points[drop] > limit), None)
    if over == 0:
        start = points[drops[0]]
        raise ValueError(f"already {start:.4g} with nothing dropped, above the limit {limit:.4g}.")
    if over is None:
        return drops[-1]
    low, high = drops[over - 1], drops[over]
    for _ in range(steps):
        middle = (low + high) / 2
        with order.dropped(middle):
            within = measure() <= limit
        low, high = (middle, high) if within else (low, middle)
    return low
