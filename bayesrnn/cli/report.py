"""`bayesrnn report`: one HTML page about a set of runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about runs of one experiment."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders, all of the same experiment."""
    out: Path = Path("report.html")
    """File to write the page to."""
    samples: int = 10
    """Number of weight samples to average over. Runs that cannot be sampled ignore it."""
    words: int = 20_000
    """Number of test words for uncertainty and calibration; 0 for all (language models only)."""
    other: str | None = None
    """Text of another domain: pydocs, ptb, wikitext-2, a folder or a file (language models only)."""
    drop: float = 0.8
    """Share of weights to drop in the pruning pattern figure (language models only)."""
    streams: int = 20
    """Number of parallel streams to divide the text into (language models only)."""
    seed: int = 0
    """Random seed."""
    data: str | None = None
    """Data to evaluate on; by default the data each run was trained on."""
    json: bool = False
    """Print the path of the page as JSON."""

    def run(self) -> None:
        from rich.console import Console

        from bayesrnn.files import check_writable, write_atomically
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.html import document, settings
        from bayesrnn.training.experiment import ReportOptions, open_runs
        from bayesrnn.training.run import labels

        if self.samples < 0 or self.streams < 1:
            raise ValueError(
                f"samples = {self.samples} must be 0 or more, and streams = {self.streams} at least 1."
            )
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop = {self.drop} must be at least 0 and below 1.")
        check_extras(figures=True)
        check_writable(self.out)
        experiment, runs = open_runs(self.run_folders)
        options = ReportOptions(
            samples=self.samples,
            words=self.words,
            other=self.other,
            drop=self.drop,
            streams=self.streams,
            seed=self.seed,
            data=self.data,
        )
        console = Console(stderr=True, quiet=not sys.stderr.isatty())
        with console.status("reading the runs") as status:
            sections = experiment.report(runs, options, status.update)
        page = document("bayesrnn: " + ", ".join(labels(runs)), [*sections, settings(runs)])
        write_atomically(
            self.out, lambda temporary: Path(temporary).write_text(page, encoding="utf-8")
        )
        if self.json:
            print(json.dumps({"report": str(self.out), "bytes": self.out.stat().st_size}))
        else:
            print(f"wrote {self.out}: open it in a browser")
