"""The style of all figures, and the learning curves of every experiment.

A figure is a function from results to a matplotlib figure.

Lines differ in dashes and markers as well as in colour, so that they can be distinguished in grey. In a
file the background is white; in a page, axes and text take the page's text colour, for dark mode.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from bayesrnn.files import printable, write_atomically
from bayesrnn.report.extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

INK = "#121314"
"""Placeholder for the page's text colour, until the figure is inserted into a page."""

# Readable on white and on near-black.
COLOURS = ("#2f6fb3", "#d9822b", "#3f9a6b", "#c2549d", "#8a8f2a", "#7a5fc0")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1)),
    (0, (8, 3)),
)
# More than there are colours, and not a multiple: the seventh line has the first colour, but its own marker.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p")
WIDTH = 4.9
"""Width in inches: narrow enough for the labels to be readable on a phone."""


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style without changing matplotlib's settings."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        need("matplotlib")
        from matplotlib import rc_context

        ink = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color")
        style: dict[Any, Any] = {
            **dict.fromkeys(ink, INK),
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "legend.fontsize": 8,
            "lines.linewidth": 1.6,
            "lines.markersize": 4.5,
        }
        with rc_context(style):
            return draw(*args, **kwargs)

    return drawn


@styled
def learning_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    valid: str,
    train: str | None = None,
    label: str,
    x: str = "epoch",
    x_label: str = "epoch",
    scale: float = 1.0,
) -> Figure:
    """A metric by epoch: validation with filled markers, training dotted with empty ones."""
    figure, axes = axes_figure(x_label, label)
    for index, (name, lines) in enumerate(runs.items()):
        lines = [line for line in lines if _numbers(line, x, valid, *([train] if train else []))]
        at = [line[x] for line in lines]
        style: dict[str, Any] = {"color": colour(index), "marker": marker(index)}
        style["markevery"] = max(1, len(lines) // 12)
        values = [scale * line[valid] for line in lines]
        axes.plot(at, values, label=label_text(name, *(["validation"] if train else [])), **style)
        if train:
            values = [scale * line[train] for line in lines]
            style["mfc"] = "none"
            axes.plot(at, values, ls=":", lw=1.2, label=label_text(name, "training"), **style)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    if x == "epoch":
        axes.locator_params(axis="x", integer=True)
    axes.legend()
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Save a figure on a white background; the file extension selects the format."""
    write_atomically(
        path,
        lambda temporary: figure.savefig(
            temporary, format=path.suffix[1:] or "png", dpi=160, facecolor="white"
        ),
    )
    return path


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as inline SVG: no background, text in the page's colour, unique ids."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # These ids are hashes of the content, so equal figures would share one.
    text = re.sub(r' id="image\w+"', "", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)


# ---------------------------------------------------------------------- building blocks


def axes_figure(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, with these labels."""
    figure = blank_figure(WIDTH, 3.3)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.6)
    return figure, axes


def blank_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def line_style(index: int) -> dict[str, Any]:
    return {"color": colour(index), "ls": DASHES[index % len(DASHES)], "marker": marker(index)}


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def label_text(name: str, *more: str) -> str:
    """A label shown literally: matplotlib reads $ as mathematics and hides labels that begin with _."""
    text = printable(", ".join([name, *more])).replace("\n", r"\n").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _numbers(line: Mapping[str, Any], *names: str) -> bool:
    """Whether a line of metrics has these numbers."""
    return all(isinstance(line.get(name), int | float) for name in names)


def plain_log_ticks(axis: Any) -> None:
    """Plain tick labels such as 90, 100, 200 on a logarithmic axis, even over less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = sorted(axis.get_view_interval())
    ratio = high / low if low > 0 else math.inf
    subs = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9) if ratio < 5 else (1, 1.5, 2, 3, 5, 7)
    axis.set_major_locator(LogLocator(subs=subs if ratio < 100 else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
