"""The learning curves of runs whose metric is perplexity, as a section."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bayesrnn.report.figures import learning_curves
from bayesrnn.report.html import picture, side_by_side
from bayesrnn.training.experiment import Section
from bayesrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def section(runs: Mapping[str, Run]) -> Section:
    """Perplexity by epoch and by training time."""
    lines = {name: _with_clock(run) for name, run in runs.items()}
    metric: dict[str, Any] = {
        "valid": "valid_perplexity",
        "train": "train_perplexity",
        "label": "perplexity",
    }
    by_epoch = learning_curves(lines, **metric)
    by_time = learning_curves(lines, x="seconds", x_label="training time (s)", **metric)
    pictures = [
        picture(by_epoch, "learning", "Perplexity by epoch, validation and training"),
        picture(by_time, "learning-time", "Perplexity by training time, validation and training"),
    ]
    return Section("learning", "Learning curves", side_by_side(pictures))


def validation_curves(runs: Mapping[str, Run]) -> Figure:
    """Validation perplexity by epoch; ValueError for runs of another metric."""
    lines = {name: run.read_metrics("epoch") for name, run in runs.items()}
    for name, own in lines.items():
        if not all("valid_perplexity" in line for line in own):
            raise ValueError(
                f"{name} has no perplexity; `bayesrnn report` draws its learning curves."
            )
    return learning_curves(lines, valid="valid_perplexity", label="validation perplexity")


def _with_clock(run: Run) -> list[dict[str, Any]]:
    """The metrics of each epoch, with the training time so far as `seconds` where it is known."""
    lines = run.read_metrics("epoch")
    clock = accumulate(line["seconds"] for line in run.read_timing())
    for line, seconds in zip(lines, clock, strict=False):
        line["seconds"] = seconds
    return lines
