"""The figures of the digits report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bayesrnn.report.figures import axes_figure, label_text, line_style, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def by_angle(curves: Mapping[str, Mapping[int, float]], label: str) -> Figure:
    """A metric against the angle of rotation."""
    figure, axes = axes_figure("rotation (degrees)", label)
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(list(points), list(points.values()), label=label_text(name), **line_style(index))
    axes.set_xticks(range(0, 181, 30))
    axes.legend()
    return figure


@styled
def pruned_errors(curves: Mapping[str, Mapping[float, float]]) -> Figure:
    """Test error against the share of weights dropped."""
    figure, axes = axes_figure("weights dropped (%)", "test error (%)")
    for index, (name, points) in enumerate(curves.items()):
        drops = [100 * drop for drop in points]
        errors = [100 * error for error in points.values()]
        axes.plot(drops, errors, label=label_text(name), **line_style(index))
    axes.legend()
    return figure
