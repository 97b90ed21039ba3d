"""`bayesrnn calibration`: are runs right as often as they say?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Calibration:
    """Measure calibration: expected error, Brier score and likelihood by confidence."""

    run_folders: Positional[tuple[Path, ...]]
    """Folders written by `bayesrnn train`."""
    samples: int = 10
    """Also average over so many samples of the weights, for the runs that can be sampled."""
    words: int = 0
    """Use so many words of the text; 0 for all."""
    split: Literal["train", "valid", "test"] = "test"
    """Which part of the text."""
    streams: int = 20
    """Stretches of text to go through side by side."""
    seed: int = 0
    """Of the sampled weights."""
    data: str | None = None
    """Another text than the runs' own, or where their text is now."""
    out: Path | None = None
    """A folder for the figures."""
    json: bool = False
    """Print one JSON line a row."""

    def run(self) -> None:
        from bayesrnn.cli.progress import steps
        from bayesrnn.data.corpus import cache_folder
        from bayesrnn.report import figures
        from bayesrnn.report import uncertainty as report
        from bayesrnn.report.extras import check_extras
        from bayesrnn.training.exported import open_trained

        if not self.run_folders:
            raise ValueError("name at least one run folder.")
        check_extras(figures=self.out is not None)
        if self.samples < 0:
            raise ValueError(f"samples = {self.samples} must be 0 or more.")
        if self.streams < 1:
            raise ValueError(f"streams = {self.streams} must be at least 1.")
        runs = [open_trained(folder) for folder in self.run_folders]
        subjects = report.subjects(
            runs, split=self.split, data=self.data, words=self.words, cache=cache_folder()
        )
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        rows = []
        with steps(sum(2 * len(subject.tokens) for subject in subjects)) as tell:
            for subject in subjects:
                rows += report.study_calibration(
                    subject, self.samples, streams=self.streams, seed=self.seed, progress=tell
                )
        if self.json:
            for row in rows:
                print(json.dumps(row.as_json()))
        else:
            print(report.render_calibration(rows))
        if self.out is not None:
            pictures = {
                "reliability.png": figures.reliability(rows),
                "nats-by-confidence.png": figures.nats_by_confidence(rows),
            }
            for name, figure in pictures.items():
                path = figures.save(figure, self.out / name)
                if not self.json:
                    print(f"wrote {path}")
