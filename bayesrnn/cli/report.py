"""`bayesrnn report`: everything about a set of runs on one page."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page: comparison, curves, uncertainty, calibration, weights."""

    run_folders: Positional[tuple[Path, ...]]
    """Folders written by `bayesrnn train`, or all by `bayesrnn mnist`."""
    out: Path = Path("report.html")
    """The page."""
    samples: int = 10
    """Samples of the weights to average over, for the runs that can be sampled."""
    words: int = 20_000
    """Words of test text for uncertainty and calibration; 0 for all."""
    other: str | None = None
    """Another domain's text: pydocs, ptb, wikitext-2, a folder or a file."""
    drop: float = 0.8
    """Share of weights to drop in the pruning pattern."""
    streams: int = 20
    """Stretches of text to go through side by side."""
    seed: int = 0
    """Of the sampled weights, the noise and the shuffling."""
    data: str | None = None
    """Another text than the runs' own, or where their text is now."""
    json: bool = False
    """Print where the page was written as JSON."""

    def run(self) -> None:
        from rich.console import Console

        from bayesrnn.data.corpus import cache_folder
        from bayesrnn.report.digits import digits_subjects
        from bayesrnn.report.digits_page import make_digits_page
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.page import Options, make_page
        from bayesrnn.storage import check_writable, write_atomically
        from bayesrnn.training.run import same_kind

        if not self.run_folders:
            raise ValueError("name at least one run folder.")
        if self.samples < 0 or self.streams < 1:
            raise ValueError(
                f"samples = {self.samples} must be 0 or more, and streams = {self.streams} at least 1."
            )
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop = {self.drop} must be at least 0 and below 1.")
        check_extras(figures=True)
        check_writable(self.out)
        for folder in self.run_folders:
            if folder.is_file():
                raise ValueError(f"{folder} is a file; this needs the folder of a run.")
        languages, digits = same_kind(self.run_folders)
        options = Options(
            samples=self.samples,
            words=self.words,
            other=self.other,
            drop=self.drop,
            streams=self.streams,
            data=self.data,
            seed=self.seed,
        )
        console = Console(stderr=True, quiet=not sys.stderr.isatty())
        with console.status("reading the runs") as status:
            if digits:
                subjects = digits_subjects(
                    digits, data=self.data, samples=self.samples, seed=self.seed
                )
                page = make_digits_page(subjects, status.update)
            else:
                page = make_page(languages, options, cache=cache_folder(), progress=status.update)
        write_atomically(
            self.out, lambda temporary: Path(temporary).write_text(page, encoding="utf-8")
        )
        if self.json:
            print(json.dumps({"report": str(self.out), "bytes": self.out.stat().st_size}))
        else:
            print(f"wrote {self.out}: open it in a browser")
