"""`bayesrnn report`: one HTML page about a set of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from bayesrnn.cli.arguments import Drop, Samples, Seed, Source, Streams, Words
from bayesrnn.cli.console import note, show, show_json, working


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about runs of one experiment."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders, all of the same experiment."""
    out: Path = Path("report.html")
    """File to write the page to."""
    samples: Samples = 10
    """Number of weight samples to average over. Runs that cannot be sampled ignore it."""
    words: Words = 20_000
    """Number of test words for uncertainty and calibration; 0 for all (language models only)."""
    other: Source | None = None
    """Text of another domain: pydocs, ptb, wikitext-2, a folder or a file (language models only)."""
    drop: Drop = 0.8
    """Share of weights to drop in the pruning pattern figure (language models only)."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into (language models only)."""
    seed: Seed = 0
    """Random seed."""
    data: Source | None = None
    """Data to evaluate on; by default the data each run was trained on."""
    json: bool = False
    """Print the path of the page as JSON."""

    def run(self) -> None:
        from bayesrnn.cli.compare import finished
        from bayesrnn.files import check_output, write_text
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.html import document, settings
        from bayesrnn.training.experiment import ReportOptions, open_runs
        from bayesrnn.training.run import labels

        check_extras(figures=True)
        check_output(self.out)
        experiment, opened = open_runs(self.run_folders)
        runs, unfinished = finished(opened)
        for run in unfinished:
            note(f"left out {run.folder}: its first epoch is not finished.")
        options = ReportOptions(
            samples=self.samples,
            words=self.words,
            other=self.other,
            drop=self.drop,
            streams=self.streams,
            seed=self.seed,
            data=self.data,
        )
        with working("reading the runs") as tell:
            sections = experiment.report(runs, options, tell)
        page = document("bayesrnn: " + ", ".join(labels(runs)), [*sections, settings(runs)])
        write_text(self.out, page)
        if self.json:
            show_json({"report": str(self.out), "bytes": self.out.stat().st_size})
        else:
            show(f"wrote {self.out}: open it in a browser")
