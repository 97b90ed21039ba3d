"""The figures of the digits report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesrnn.report.figures import axes_figure, label_text, line_style, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayesrnn.tasks.digits.comparison import Rotation


@styled
def by_angle(curves: Mapping[str, Mapping[int, float]], label: str) -> Figure:
    """A metric against the angle of rotation."""
    figure, axes = axes_figure("rotation (degrees)", label)
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(list(points), list(points.values()), label=label_text(name), **line_style(index))
    axes.set_xticks(range(0, 181, 30))
    axes.legend()
    return figure


ANGLE_PICTURES = ("entropy-by-angle.png", "error-by-angle.png", "mi-by-angle.png")


def turned(found: Sequence[Rotation]) -> dict[str, Figure]:
    """Entropy, error and, with samples, mutual information against the angle, by the name of a file."""
    named = {
        f"{r.model}, {f'{r.samples} samples' if r.samples else 'no sampling'}": r for r in found
    }
    entropy = {name: r.entropy for name, r in named.items()}
    error = {name: {a: 100 * e for a, e in r.error.items()} for name, r in named.items()}
    information = {name: r.mutual_information for name, r in named.items() if r.samples}
    labels = ("mean entropy (nats)", "error (%)", "mutual information (nats)")
    curves = zip(ANGLE_PICTURES, (entropy, error, information), labels, strict=True)
    return {name: by_angle(points, label) for name, points, label in curves if points}


@styled
def pruned_errors(curves: Mapping[str, Mapping[float, float]], split: str = "test") -> Figure:
    """The error on a split against the share of weights dropped."""
    figure, axes = axes_figure("weights dropped (%)", f"{split} error (%)")
    for index, (name, points) in enumerate(curves.items()):
        drops = [100 * drop for drop in points]
        errors = [100 * error for error in points.values()]
        axes.plot(drops, errors, label=label_text(name), **line_style(index))
    axes.legend()
    return figure
