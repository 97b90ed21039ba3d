"""`bayesrnn calibration`: does a run's confidence match its accuracy?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Samples, Seed, Source, Streams, Words, output_folder
from bayesrnn.cli.console import show, show_json


@dataclass(frozen=True)
class Calibration:
    """Measure calibration: expected calibration error, Brier score and likelihood by confidence."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders of `bayesrnn train`, or files written by `bayesrnn prune --export`."""
    samples: Samples = 10
    """Number of weight samples to average over; 0 to skip. Runs that cannot be sampled ignore it."""
    words: Words = 0
    """Number of words to evaluate on; 0 for all."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into."""
    seed: Seed = 0
    """Random seed."""
    data: Source | None = None
    """Text to evaluate on; by default the text each run was trained on."""
    out: Path | None = None
    """Folder to write the figures to."""
    json: bool = False
    """Print one line of JSON for each row."""

    def run(self) -> None:
        from bayesrnn.cli.progress import steps
        from bayesrnn.report import calibration, figures
        from bayesrnn.report.extras import check_extras
        from bayesrnn.tasks.language import uncertainty_study as study
        from bayesrnn.tasks.language.trained import open_trained

        if not self.run_folders:
            raise ValueError("give at least one run folder.")
        check_extras(figures=self.out is not None)
        if self.out is not None:
            output_folder(self.out, "reliability.png", "nats-by-confidence.png")
        models = open_trained(*self.run_folders)
        subjects = study.subjects(models, split=self.split, data=self.data, words=self.words)
        rows = []
        with steps(sum(2 * len(subject.tokens) for subject in subjects)) as tell:
            for subject in subjects:
                rows += study.study_calibration(
                    subject, self.samples, streams=self.streams, seed=self.seed, progress=tell
                )
        if self.json:
            for row in rows:
                show_json(row.as_json())
        else:
            show(calibration.render(rows))
        if self.out is not None:
            pictures = {
                "reliability.png": calibration.reliability(rows, "word"),
                "nats-by-confidence.png": calibration.nats_by_confidence(rows, "word"),
            }
            for name, figure in pictures.items():
                path = figures.save(figure, self.out / name)
                if not self.json:
                    show(f"wrote {path}")
