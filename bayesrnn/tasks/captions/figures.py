"""The figures of the caption report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesrnn.report.figures import axes_figure, label_text, line_style, styled
from bayesrnn.tasks.captions.knowledge import Rejection

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def rejection_curves(found: Sequence[Rejection]) -> Figure:
    """CIDEr of the captions kept, against the share of captions withheld."""
    figure, axes = axes_figure(
        "least confident captions withheld (%)", "CIDEr of the others (x 100)"
    )
    for index, curve in enumerate(found):
        axes.plot(
            [100 * (1 - share) for share in curve.kept],
            [100 * value for value in curve.kept.values()],
            label=label_text(curve.run, curve.way),
            **line_style(index),
        )
    axes.legend()
    return figure


@styled
def pruning_curves(curves: Mapping[str, Mapping[float, float]], split: str = "test") -> Figure:
    """Perplexity of the captions of a split against the share of weights dropped."""
    figure, axes = axes_figure("weights dropped (%)", f"{split} perplexity")
    for index, (name, points) in enumerate(curves.items()):
        drops = [100 * drop for drop in points]
        axes.plot(drops, list(points.values()), label=label_text(name), **line_style(index))
    axes.legend()
    return figure
