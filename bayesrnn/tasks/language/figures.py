"""The figures of the language-model report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.report.figures import (
    DASHES,
    INK,
    WIDTH,
    axes_figure,
    blank_figure,
    colour,
    label_text,
    line_style,
    marker,
    plain_log_ticks,
    styled,
)
from bayesrnn.tasks.language.evaluation.uncertainty import SIGNALS, Gap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def pruning_curve(
    curves: Mapping[str, Mapping[float, float]], chosen: float | None = None, split: str = "valid"
) -> Figure:
    """Perplexity against the share of weights dropped, up to four times that of the worst unpruned model."""
    named = {"valid": "validation", "train": "training"}.get(split, split)
    figure, axes = axes_figure("weights dropped (%)", f"{named} perplexity")
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(
            [100 * drop for drop in points],
            list(points.values()),
            label=label_text(name),
            **line_style(index),
        )
    best = min(min(points.values()) for points in curves.values())
    worst = max(max(points.values()) for points in curves.values())
    axes.set_yscale("log")
    whole = max(min(points.values()) for points in curves.values())
    axes.set_ylim(best * 0.97, min(worst * 1.05, whole * 4))
    plain_log_ticks(axes.yaxis)
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


@styled
def pruning_patterns(kept: Mapping[str, Any]) -> Figure:
    """For each LSTM matrix and gate, kept weights in black, and the share kept of each row."""
    names = _matrices(kept)
    size = 1.55
    figure = blank_figure(size * 4.9, size * 1.22 * len(names) + 0.35)
    outer = figure.add_gridspec(
        len(names), 4, wspace=0.18, hspace=0.3, left=0.075, right=0.99, top=0.93, bottom=0.06
    )
    for row, name in enumerate(names):
        cells = [outer[row, column] for column in range(4)]
        _draw_gates(figure, cells, kept[name], name, first=row == 0, last=row == len(names) - 1)
    return figure


def patterns_by_matrix(kept: Mapping[str, Any]) -> dict[str, Figure]:
    """The same with a figure for each matrix, by its name: narrow enough for a column of the page."""
    return {_matrix_name(name): _pattern(name, kept[name]) for name in _matrices(kept)}


@styled
def _pattern(name: str, kept: Any) -> Figure:
    figure = blank_figure(WIDTH, 1.75)
    outer = figure.add_gridspec(1, 4, wspace=0.22, left=0.105, right=0.965, top=0.89, bottom=0.2)
    _draw_gates(figure, [outer[0, column] for column in range(4)], kept, name)
    return figure


def _draw_gates(
    figure: Figure,
    cells: Sequence[Any],
    kept: Any,
    name: str,
    *,
    first: bool = True,
    last: bool = True,
) -> None:
    """The kept weights of each gate of one matrix; labels above the first row and below the last."""
    matrix = np.asarray(kept, dtype=float)
    units = matrix.shape[0] // 4
    highest = max(100 * matrix.reshape(4, units, -1).mean(2).max(), 1)
    for column, gate in enumerate(GATES):
        part = matrix[column * units : (column + 1) * units]
        inner = cells[column].subgridspec(1, 2, width_ratios=(4, 1), wspace=0.06)
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
        if last:
            image.set_xlabel("from unit", fontsize=7.5, labelpad=1)
            side.set_xlabel("kept (%)", fontsize=7, labelpad=1)
        if first:
            image.set_title(f"{gate} gate", fontsize=8.5, color=INK)
        share = part.mean(1)
        side.fill_betweenx(np.arange(units), 0, 100 * share, color="#777777", lw=0, step="mid")
        side.set_ylim(units - 0.5, -0.5)
        side.set_xlim(0, highest)
        side.set_yticks([])
        side.tick_params(labelsize=6, length=2)
        side.set_xticks([highest], [f"{highest:.0f}"])


def _matrices(kept: Mapping[str, Any]) -> list[str]:
    """The matrices of the LSTM."""
    return [name for name in kept if "weight_ih" in name or "weight_hh" in name]


@styled
def entropy_gap(gaps: Sequence[Gap], text: str = "reversed") -> Figure:
    """The paper's Figure 3: the gap by number of samples; a horizontal line shows it without sampling."""
    figure, axes = axes_figure("samples of the weights", f"entropy gap, {text} text (nats/word)")
    counts: set[int] = set()
    for index, model in enumerate(dict.fromkeys(gap.model for gap in gaps)):
        own = [gap for gap in gaps if gap.model == model and gap.text == text]
        sampled = [gap for gap in own if gap.samples]
        for gap in own:
            if not gap.samples:
                axes.axhline(
                    gap.entropy_gap,
                    color=colour(index),
                    ls=DASHES[index % len(DASHES)],
                    lw=1.1,
                    label=label_text(model, "no sampling"),
                )
        if sampled:
            counts |= {gap.samples for gap in sampled}
            axes.plot(
                [gap.samples for gap in sampled],
                [gap.entropy_gap for gap in sampled],
                label=label_text(model, "samples"),
                **line_style(index),
            )
    if counts:
        axes.set_xscale("log")
        axes.set_xticks(sorted(counts), [str(count) for count in sorted(counts)])
        axes.minorticks_off()
    else:
        axes.set_xticks([])
    axes.margins(y=0.35)  # room for the legend
    axes.legend(fontsize=7.5)
    return figure


@styled
def told_apart(gaps: Sequence[Gap], signal: str = SIGNALS[0]) -> Figure:
    """AUROC of classifying windows of each text, for each model with its largest number of samples."""
    texts = list(dict.fromkeys(gap.text for gap in gaps))
    models = list(dict.fromkeys(gap.model for gap in gaps))
    meaning = {"surprise": "-log p of known words"}.get(signal, signal.replace("_", " "))
    figure, axes = axes_figure(f"AUROC by a window's mean {meaning}", "")
    for index, model in enumerate(models):
        most = max(gap.samples for gap in gaps if gap.model == model)
        at = {g.text: g.auroc[signal] for g in gaps if g.model == model and g.samples == most}
        places = [texts.index(text) + (index - (len(models) - 1) / 2) * 0.14 for text in at]
        label = label_text(model, f"{most} samples" if most else "no sampling")
        axes.plot(
            list(at.values()),
            places,
            ls="",
            marker=marker(index),
            color=colour(index),
            label=label,
        )
    axes.axvline(0.5, color=INK, lw=0.8, ls=":")
    axes.set_yticks(range(len(texts)), [label_text(text) for text in texts])
    axes.invert_yaxis()
    axes.legend(loc="best", fontsize=7.5)
    return figure


def _matrix_name(name: str) -> str:
    kind = "recurrent" if "weight_hh" in name else "input"
    return f"layer {int(name.rsplit('l', 1)[-1]) + 1}, {kind}"
