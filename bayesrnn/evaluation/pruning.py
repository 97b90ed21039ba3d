"""How much of a model can go: a measure of loss against the share of weights dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayesrnn.pruning import DropOrder

DROPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995)
"""The shares of a curve: closer where it bends."""

Measure = Callable[[], float]
"""What the model in hand is worth now, such as its perplexity: the lower the better."""


def curve(
    order: DropOrder,
    measure: Measure,
    drops: Sequence[float] = DROPS,
    progress: Callable[[float], None] = lambda drop: None,
) -> dict[float, float]:
    """The measure at each share dropped."""
    points = {}
    for drop in drops:
        with order.dropped(drop):
            points[drop] = measure()
        progress(drop)
    return points


def largest_drop(
    order: DropOrder, measure: Measure, points: dict[float, float], limit: float, steps: int = 5
) -> float:
    """The largest share dropped whose measure is within `limit`, by bisection between a curve's points.

    It lies between the last point before the curve first goes over the limit and that point, so a
    dip of the curve further out is not used.
    """
    drops = sorted(points)
    over = next((i for i, drop in enumerate(drops) if points[drop] > limit), None)
    if over == 0:
        raise ValueError(f"already {points[drops[0]]:.4g} with nothing dropped, over {limit:.4g}.")
    if over is None:
        return drops[-1]
    low, high = drops[over - 1], drops[over]
    for _ in range(steps):
        middle = (low + high) / 2
        with order.dropped(middle):
            within = measure() <= limit
        low, high = (middle, high) if within else (low, middle)
    return low
