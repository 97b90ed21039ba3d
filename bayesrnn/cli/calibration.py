"""`bayesrnn calibration`: does a run's confidence match its accuracy?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Calibration:
    """Measure calibration: expected calibration error, Brier score and likelihood by confidence."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders of `bayesrnn train`, or files written by `bayesrnn prune --export`."""
    samples: int = 10
    """Number of weight samples to average over; 0 to skip. Runs that cannot be sampled ignore it."""
    words: int = 0
    """Number of words to evaluate on; 0 for all."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    streams: int = 20
    """Number of parallel streams to divide the text into."""
    seed: int = 0
    """Random seed."""
    data: str | None = None
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
        if self.samples < 0:
            raise ValueError(f"samples = {self.samples} must be 0 or more.")
        if self.streams < 1:
            raise ValueError(f"streams = {self.streams} must be at least 1.")
        models = open_trained(*self.run_folders)
        subjects = study.subjects(models, split=self.split, data=self.data, words=self.words)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        rows = []
        with steps(sum(2 * len(subject.tokens) for subject in subjects)) as tell:
            for subject in subjects:
                rows += study.study_calibration(
                    subject, self.samples, streams=self.streams, seed=self.seed, progress=tell
                )
        if self.json:
            for row in rows:
                print(json.dumps(row.as_json()))
        else:
            print(calibration.render(rows))
        if self.out is not None:
            pictures = {
                "reliability.png": calibration.reliability(rows, "word"),
                "nats-by-confidence.png": calibration.nats_by_confidence(rows, "word"),
            }
            for name, figure in pictures.items():
                path = figures.save(figure, self.out / name)
                if not self.json:
                    print(f"wrote {path}")
