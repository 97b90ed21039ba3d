"""The calibration of runs as a table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayesrnn.evaluation.calibration import Calibration
from bayesrnn.report.figures import INK, axes_figure, label_text, line_style, styled
from bayesrnn.report.html import picture, side_by_side, table
from bayesrnn.report.table import text_table
from bayesrnn.training.experiment import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CalibrationRow:
    """The calibration of a run for one way of predicting."""

    run: str
    samples: int
    """Number of weight samples averaged over; 0 for none."""
    calibration: Calibration

    def as_json(self) -> dict:
        return {"run": self.run, "samples": self.samples, **self.calibration.as_json()}


def section(rows: Sequence[CalibrationRow], guessed: str, note: str = "") -> Section:
    """The report section; `guessed` is what the model predicts, such as "word"."""
    pictures = [
        picture(reliability(rows, guessed), "reliability", "Accuracy by confidence"),
        picture(nats_by_confidence(rows, guessed), "nats", "Mean -log p by confidence"),
    ]
    said = f"<p>{note}</p>" if note else ""
    body = side_by_side(pictures, said) + table(*table_of(rows))
    return Section("calibration", "Calibration", body)


def table_of(rows: Sequence[CalibrationRow]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each run and way of predicting."""
    headings = ["run", "samples", "nats", "accuracy", "confidence", "ECE", "Brier"]
    cells = [
        [
            row.run,
            str(row.samples) if row.samples else "none",
            f"{row.calibration.nats:.4f}",
            f"{row.calibration.accuracy:.2%}",
            f"{row.calibration.confidence:.2%}",
            f"{row.calibration.calibration_error:.2%}",
            f"{row.calibration.brier:.4f}",
        ]
        for row in rows
    ]
    return headings, cells


def render(rows: Sequence[CalibrationRow]) -> str:
    return text_table(*table_of(rows))


@styled
def reliability(rows: Sequence[CalibrationRow], guessed: str) -> Figure:
    """Reliability diagram: accuracy against confidence."""
    figure, axes = axes_figure(
        f"probability of the likeliest {guessed} (%)", "how often it was right (%)"
    )
    axes.plot([0, 100], [0, 100], color=INK, lw=0.8, ls=":", label="calibrated")
    for index, row in enumerate(rows):
        bins = [b for b in row.calibration.bins if b.words >= 20]
        axes.plot(
            [100 * b.confidence for b in bins],
            [100 * b.accuracy for b in bins],
            label=f"{_way(row)}: ECE {100 * row.calibration.calibration_error:.1f}%",
            **line_style(index),
        )
    axes.legend(loc="upper left", fontsize=7.5)
    return figure


@styled
def nats_by_confidence(rows: Sequence[CalibrationRow], guessed: str) -> Figure:
    """Mean -log p against confidence."""
    figure, axes = axes_figure(
        f"probability of the likeliest {guessed} (%)", f"-log p of the true {guessed} (nats)"
    )
    for index, row in enumerate(rows):
        bins = [b for b in row.calibration.bins if b.words >= 20]
        axes.plot(
            [100 * b.confidence for b in bins],
            [b.nats for b in bins],
            label=_way(row),
            **line_style(index),
        )
    axes.legend(fontsize=7.5)
    return figure


def _way(row: CalibrationRow) -> str:
    return label_text(row.run, f"{row.samples} samples" if row.samples else "no sampling")
