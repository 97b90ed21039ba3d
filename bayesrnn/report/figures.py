"""Pictures: each a function from results to a matplotlib figure.

Lines differ by dash and marker as well as by colour, so they can be told apart in grey. On paper the
ground is white; inside a page ink takes the page's own text colour, so that a dark page has light axes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from bayesrnn.evaluation.uncertainty import Gap
from bayesrnn.report.extras import need
from bayesrnn.report.uncertainty import CalibrationRow
from bayesrnn.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

INK = "#121314"
"""Stands for the text colour of the page until the figure is put in one."""

# Each readable on white and on near-black.
COLOURS = ("#2f6fb3", "#d9822b", "#3f9a6b", "#c2549d", "#8a8f2a", "#7a5fc0")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1)),
    (0, (8, 3)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH = 4.9
"""Inches: narrow enough that the letters stay readable at the width of a phone."""


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style, and leave matplotlib's settings as they were."""

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


@_styled
def learning_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    valid: str = "valid_perplexity",
    train: str | None = "train_perplexity",
    label: str = "perplexity",
    x: str = "epoch",
    x_label: str = "epoch",
    scale: float = 1.0,
) -> Figure:
    """A measure by epoch: validation with full markers, training dotted with empty ones."""
    figure, axes = _figure(x_label, label)
    for index, (name, lines) in enumerate(runs.items()):
        at = [line[x] for line in lines]
        style: dict[str, Any] = {"color": _colour(index), "marker": _marker(index)}
        style["markevery"] = max(1, len(lines) // 12)
        values = [scale * line[valid] for line in lines]
        axes.plot(at, values, label=_label(name, *(["validation"] if train else [])), **style)
        if train:
            values = [scale * line[train] for line in lines]
            style["mfc"] = "none"
            axes.plot(at, values, ls=":", lw=1.2, label=_label(name, "training"), **style)
    axes.set_yscale("log")
    _plain_log_ticks(axes.yaxis)
    if x == "epoch":
        axes.locator_params(axis="x", integer=True)
    axes.legend()
    return figure


@_styled
def by_angle(curves: Mapping[str, Mapping[int, float]], label: str) -> Figure:
    """A measure against the angle by which digits were turned."""
    figure, axes = _figure("rotation (degrees)", label)
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(list(points), list(points.values()), label=_label(name), **_style(index))
    axes.set_xticks(range(0, 181, 30))
    axes.legend()
    return figure


@_styled
def pruned_errors(curves: Mapping[str, Mapping[float, float]]) -> Figure:
    """Test error against the share of weights dropped."""
    figure, axes = _figure("weights dropped (%)", "test error (%)")
    for index, (name, points) in enumerate(curves.items()):
        drops = [100 * drop for drop in points]
        errors = [100 * error for error in points.values()]
        axes.plot(drops, errors, label=_label(name), **_style(index))
    axes.legend()
    return figure


@_styled
def pruning_curve(
    curves: Mapping[str, Mapping[float, float]], chosen: float | None = None, split: str = "valid"
) -> Figure:
    """Perplexity against the share of weights dropped, up to four times the worst model's own."""
    named = {"valid": "validation", "train": "training"}.get(split, split)
    figure, axes = _figure("weights dropped (%)", f"{named} perplexity")
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(
            [100 * drop for drop in points],
            list(points.values()),
            label=_label(name),
            **_style(index),
        )
    best = min(min(points.values()) for points in curves.values())
    worst = max(max(points.values()) for points in curves.values())
    axes.set_yscale("log")
    whole = max(min(points.values()) for points in curves.values())
    axes.set_ylim(best * 0.97, min(worst * 1.05, whole * 4))
    _plain_log_ticks(axes.yaxis)
    if chosen is not None:
        axes.axvline(100 * chosen, color=INK, lw=0.8, ls=":")
        axes.annotate(
            f"{chosen:.1%}",
            (100 * chosen, 0.98),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            rotation=90,
            fontsize=8,
            color=INK,
        )
    axes.legend(loc="upper left")
    return figure


GATES = ("input", "forget", "candidate", "output")


@_styled
def pruning_patterns(kept: Mapping[str, Any]) -> Figure:
    """For each LSTM matrix and gate, kept weights black and dropped white, and the share kept of each row."""
    names = [name for name in kept if "weight_ih" in name or "weight_hh" in name]
    size = 1.55
    figure = _blank(size * 4.9, size * 1.22 * len(names) + 0.35)
    outer = figure.add_gridspec(
        len(names), 4, wspace=0.18, hspace=0.3, left=0.075, right=0.99, top=0.93, bottom=0.06
    )
    for row, name in enumerate(names):
        matrix = np.asarray(kept[name], dtype=float)
        units = matrix.shape[0] // 4
        for column, gate in enumerate(GATES):
            part = matrix[column * units : (column + 1) * units]
            inner = outer[row, column].subgridspec(1, 2, width_ratios=(4, 1), wspace=0.06)
            image, side = figure.add_subplot(inner[0]), figure.add_subplot(inner[1])
            image.imshow(
                1 - part, cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="antialiased"
            )
            image.tick_params(labelsize=6, length=2)
            image.set_xticks([0, part.shape[1] - 1], [str(1), str(part.shape[1])])
            image.set_yticks([0, units - 1], ["1", str(units)])
            if column:
                image.set_yticklabels([])
            else:
                image.set_ylabel(f"{_matrix_name(name)}\nto unit", fontsize=7.5, labelpad=0)
            if row == len(names) - 1:
                image.set_xlabel("from unit", fontsize=7.5, labelpad=1)
            if row == 0:
                image.set_title(f"{gate} gate", fontsize=8.5, color=INK)
            share = part.mean(1)
            side.fill_betweenx(np.arange(units), 0, 100 * share, color="#777777", lw=0, step="mid")
            side.set_ylim(units - 0.5, -0.5)
            side.set_xlim(0, max(100 * matrix.reshape(4, units, -1).mean(2).max(), 1))
            side.set_yticks([])
            side.tick_params(labelsize=6, length=2)
            highest = side.get_xlim()[1]
            side.set_xticks([highest], [f"{highest:.0f}"])
            if row == len(names) - 1:
                side.set_xlabel("kept (%)", fontsize=7, labelpad=1)
    return figure


@_styled
def entropy_gap(gaps: Sequence[Gap], text: str = "reversed") -> Figure:
    """The paper's Figure 3: the gap against the number of samples, and of the weights at rest as a line."""
    figure, axes = _figure("samples of the weights", f"entropy gap, {text} text (nats/word)")
    counts: set[int] = set()
    for index, model in enumerate(dict.fromkeys(gap.model for gap in gaps)):
        own = [gap for gap in gaps if gap.model == model and gap.text == text]
        sampled = [gap for gap in own if gap.samples]
        for gap in own:
            if not gap.samples:
                axes.axhline(
                    gap.entropy_gap,
                    color=_colour(index),
                    ls=DASHES[index % len(DASHES)],
                    lw=1.1,
                    label=_label(model, "at rest"),
                )
        if sampled:
            counts |= {gap.samples for gap in sampled}
            axes.plot(
                [gap.samples for gap in sampled],
                [gap.entropy_gap for gap in sampled],
                label=_label(model, "samples"),
                **_style(index),
            )
    if counts:
        axes.set_xscale("log")
        axes.set_xticks(sorted(counts), [str(count) for count in sorted(counts)])
        axes.minorticks_off()
    else:
        axes.set_xticks([])
    axes.legend(fontsize=7.5)
    return figure


@_styled
def told_apart(gaps: Sequence[Gap], signal: str = "entropy") -> Figure:
    """AUROC of telling a window of each text from the true one, for each model with its most samples."""
    texts = list(dict.fromkeys(gap.text for gap in gaps))
    models = list(dict.fromkeys(gap.model for gap in gaps))
    figure, axes = _figure("AUROC of a window's mean " + signal.replace("_", " "), "")
    figure.set_figheight(1.0 + 0.32 * len(texts))
    for index, model in enumerate(models):
        most = max(gap.samples for gap in gaps if gap.model == model)
        at = {g.text: g.auroc[signal] for g in gaps if g.model == model and g.samples == most}
        places = [texts.index(text) + (index - (len(models) - 1) / 2) * 0.14 for text in at]
        label = _label(model, f"{most} samples" if most else "at rest")
        axes.plot(
            list(at.values()),
            places,
            ls="",
            marker=_marker(index),
            color=_colour(index),
            label=label,
        )
    axes.axvline(0.5, color=INK, lw=0.8, ls=":")
    axes.set_yticks(range(len(texts)), [_label(text) for text in texts])
    axes.invert_yaxis()
    axes.legend(loc="best", fontsize=7.5)
    return figure


@_styled
def reliability(rows: Sequence[CalibrationRow], guessed: str = "word") -> Figure:
    """How often the likeliest word came, against how likely it was said to be."""
    figure, axes = _figure(
        f"probability of the likeliest {guessed} (%)", "how often it was right (%)"
    )
    figure.set_figheight(4.0)
    axes.plot([0, 100], [0, 100], color=INK, lw=0.8, ls=":", label="calibrated")
    for index, row in enumerate(rows):
        bins = [b for b in row.calibration.bins if b.words >= 20]
        axes.plot(
            [100 * b.confidence for b in bins],
            [100 * b.accuracy for b in bins],
            label=f"{_way(row)}: ECE {100 * row.calibration.calibration_error:.1f}%",
            **_style(index),
        )
    axes.legend(loc="upper left", fontsize=7.5)
    return figure


@_styled
def nats_by_confidence(rows: Sequence[CalibrationRow], guessed: str = "word") -> Figure:
    """-log p of the words that came, by how sure the model was."""
    figure, axes = _figure(
        f"probability of the likeliest {guessed} (%)", f"-log p of the true {guessed} (nats)"
    )
    for index, row in enumerate(rows):
        bins = [b for b in row.calibration.bins if b.words >= 20]
        axes.plot(
            [100 * b.confidence for b in bins],
            [b.nats for b in bins],
            label=_way(row),
            **_style(index),
        )
    axes.legend(fontsize=7.5)
    return figure


@_styled
def distribution(
    layers: Mapping[str, tuple[np.ndarray, np.ndarray]], label: str, *, log: bool = False
) -> Figure:
    """Histograms by layer, given as (bin edges, share of the layer's weights)."""
    figure, axes = _figure(label, "share of weights (%)")
    for index, (name, (edges, shares)) in enumerate(layers.items()):
        axes.stairs(
            100 * shares,
            edges,
            label=_label(name),
            color=_colour(index),
            ls=DASHES[index % len(DASHES)],
            lw=1.4,
        )
    if log:
        axes.set_xscale("log")
        _plain_log_ticks(axes.xaxis)
        axes.set_ylim(bottom=0)
    else:  # nearly all lie near 0, and the few others are what was learnt
        axes.set_yscale("log")
        _plain_log_ticks(axes.yaxis)
    axes.legend(fontsize=7.5)
    return figure


@_styled
def information(bits: Mapping[str, tuple[float, int]]) -> Figure:
    """Bits that each layer holds beyond its prior: total by the bar, per weight written beside it."""
    figure, axes = _figure("information beyond the prior (Mbit)", "")
    figure.set_figheight(0.9 + 0.3 * len(bits))
    names = list(bits)
    total = [value / 1e6 for value, _ in bits.values()]
    axes.barh(range(len(names)), total, color=COLOURS[0], height=0.6)
    for place, (value, weights) in enumerate(bits.values()):
        axes.annotate(
            f" {value / weights:.2f} bits/weight",
            (max(total[place], 0), place),
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(right=max(total) * 1.45)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a picture, on white; the name's ending says the format."""
    write_atomically(
        path,
        lambda temporary: figure.savefig(
            temporary, format=path.suffix[1:] or "png", dpi=160, facecolor="white"
        ),
    )
    return path


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The picture as an element of a page: no ground, ink in the page's colour, ids of its own."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r' id="image\w+"', "", text
    )  # named by content: equal pictures would share a name
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)


# ---------------------------------------------------------------------- how all of them look


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    figure = _blank(WIDTH, 3.3)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, color="#888888", alpha=0.25, lw=0.6)
    return figure, axes


def _blank(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _style(index: int) -> dict[str, Any]:
    return {"color": _colour(index), "ls": DASHES[index % len(DASHES)], "marker": _marker(index)}


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def _way(row: CalibrationRow) -> str:
    return _label(row.run, f"{row.samples} samples" if row.samples else "at rest")


def _label(name: str, *more: str) -> str:
    """A name as it stands: no mathematics between dollars, and not left out for an underscore."""
    text = ", ".join([name, *more]).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _matrix_name(name: str) -> str:
    kind = "recurrent" if "weight_hh" in name else "input"
    return f"layer {int(name.rsplit('l', 1)[-1]) + 1}, {kind}"


def _plain_log_ticks(axis: Any) -> None:
    """Numbers such as 90, 100, 200 on a logarithmic axis that may span less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = sorted(axis.get_view_interval())
    narrow = low > 0 and high / low < 100
    axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if narrow else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
