"""`bayesrnn compare`: the paper's Table 1 for your runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from bayesrnn.cli.arguments import Rate, Samples, Share, Source, check_needs, output_folder
from bayesrnn.cli.console import note, show, show_json, working
from bayesrnn.cli.kinds import LANGUAGE, check_unused
from bayesrnn.cli.launch import OnDevice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayesrnn.training.run import Run

PICTURE = "learning-curves.png"


@dataclass(frozen=True)
class Compare(OnDevice):
    """Compare runs of one experiment in a table: perplexity or error, speed and size."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders of one experiment, on the same data; language models must have one vocabulary."""
    samples: Samples = 0
    """Number of weight samples to average over; 0 to skip. Runs that cannot be sampled ignore it."""
    dynamic: bool = False
    """Add dynamic evaluation (language models only)."""
    lr: Rate = 0.1
    """Learning rate of dynamic evaluation."""
    rare_words: Share = 0.0
    """Larger learning rates for rare words in dynamic evaluation, as in `evaluate`; 0 for one rate."""
    decay: Share = 0.0
    """Before each step of dynamic evaluation, go this share of the way back to the trained weights, as in
    `evaluate`."""
    data: Source | None = None
    """Data to evaluate on; by default the data each run was trained on."""
    out: Path | None = None
    """Folder to write the learning curves to, as learning-curves.png (language models and captions only)."""
    markdown: bool = False
    """Print the table as Markdown."""
    json: bool = False
    """Print the table as JSON."""

    def run(self) -> None:
        from bayesrnn.report.table import markdown_table, text_table
        from bayesrnn.training.experiment import CompareOptions, open_runs

        for option in ("lr", "rare_words", "decay"):
            check_needs(self, option, "dynamic")
        experiment, opened = open_runs(self.run_folders)
        if experiment.name != LANGUAGE:
            check_unused(self, self.run_folders[0], experiment.name, "dynamic")
        runs, unfinished = finished(opened)
        curves = self._curves(runs)
        options = CompareOptions(
            samples=self.samples,
            dynamic=self.dynamic,
            lr=self.lr,
            rare_words=self.rare_words,
            decay=self.decay,
            data=self.data,
        )
        with working("evaluating") as tell:
            found = experiment.compare(runs, options, lambda what: tell(f"evaluating {what}"))
        for line in found.notes:
            note(line)
        for run in unfinished:
            note(f"{run.folder}: unfinished, it has no weights until its first epoch ends.")
        if self.json:
            show_json(list(found.rows))
        else:
            table = markdown_table if self.markdown else text_table
            empty = [["-"] * (len(found.headings) - 1) for _ in unfinished]
            rest = [
                [f"{r.name} (unfinished)", *row] for r, row in zip(unfinished, empty, strict=True)
            ]
            show(table(found.headings, [*found.cells, *rest]))
        if self.out is not None and curves is not None:
            from bayesrnn.report.figures import save

            path = save(curves, self.out / PICTURE)
            if not self.json:
                show(f"wrote {path}")

    def _curves(self, runs: Sequence[Run]) -> Figure | None:
        """The learning curves, if they are wanted; drawn before anything is evaluated or written."""
        if self.out is None:
            return None
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.learning import validation_curves
        from bayesrnn.training.run import labels

        check_extras(figures=True)
        curves = validation_curves(dict(zip(labels(runs), runs, strict=True)))
        output_folder(self.out, PICTURE)
        return curves


def finished(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs with weights, at least one, and those without: their first epoch is not finished."""
    for run in runs:
        if not run.weights.exists() and run.read_metrics("epoch"):
            raise ValueError(
                f"{run.weights} is missing, though an epoch is finished; `train --resume` restores it."
            )
    done = [run for run in runs if run.weights.exists()]
    if not done:
        raise ValueError(
            f"{runs[0].folder} has no weights yet: its first epoch is not finished; train it further."
        )
    return done, [run for run in runs if run not in done]
