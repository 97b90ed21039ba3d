"""`bayesrnn report`: one HTML page about a set of runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from shutil import get_terminal_size

from tyro.conf import Positional

from bayesrnn.cli.arguments import Drop, Samples, Seed, Source, Streams, Words
from bayesrnn.cli.console import note, show, show_json
from bayesrnn.cli.launch import OnDevice
from bayesrnn.cli.progress import work


@dataclass(frozen=True)
class Report(OnDevice):
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
    """Print the path of the page and its summary as JSON."""

    def run(self) -> None:
        from bayesrnn.cli.compare import finished
        from bayesrnn.files import PAGE, check_output, write_text
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.html import document, foot, settings
        from bayesrnn.report.summary import Summary
        from bayesrnn.training.experiment import ReportOptions, open_runs
        from bayesrnn.training.run import labels

        check_extras(figures=True)
        check_output(self.out, PAGE)
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
        with work("reading the runs") as progress:
            sections = experiment.report(runs, options, progress)
        title = "bayesrnn: " + ", ".join(labels(runs))
        page = document(title, [*sections, settings(runs)], foot(self.command()))
        write_text(self.out, page)
        summaries = [section for section in sections if isinstance(section, Summary)]
        if self.json:
            record = {"report": str(self.out), "bytes": self.out.stat().st_size}
            said = [finding.as_json() for each in summaries for finding in each.findings]
            show_json({**record, "summary": said})
        else:
            width = min(get_terminal_size((100, 24)).columns, 100)
            for summary in summaries:
                show(f"{summary.as_text(width)}\n")
            show(f"wrote {self.out}: open it in a browser")

    def command(self) -> str:
        """The command that writes this page again."""
        words = ["bayesrnn", "report", *map(str, self.run_folders)]
        for option in (field for field in fields(self) if field.name != "run_folders"):
            value = getattr(self, option.name)
            if value != option.default:
                words += [f"--{option.name}", *([] if value is True else [str(value)])]
        return shlex.join(words)
