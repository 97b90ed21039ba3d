"""`bayesrnn compare`: the paper's Table 1 for your runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Compare:
    """Compare runs in a table: perplexity or error, speed and size."""

    run_folders: Positional[tuple[Path, ...]]
    """Folders written by `bayesrnn train`, or all by `bayesrnn mnist`."""
    samples: int = 0
    """Also average over so many samples of the weights, for the runs that can be sampled."""
    dynamic: bool = False
    """Also with dynamic evaluation."""
    lr: float = 0.1
    """Learning rate of dynamic evaluation."""
    data: str | None = None
    """Another text than the runs' own, or where their text is now."""
    markdown: bool = False
    """Print Markdown."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from rich.console import Console

        from bayesrnn.data.corpus import cache_folder
        from bayesrnn.report.comparison import compare, render
        from bayesrnn.report.digits import compare_digits, digits_subjects, render_digits
        from bayesrnn.training.run import same_kind

        if not self.run_folders:
            raise ValueError("name at least one run folder.")
        if self.lr <= 0 or self.samples < 0:
            raise ValueError(
                f"lr = {self.lr} must be above 0, and samples = {self.samples} 0 or more."
            )
        languages, digits = same_kind(self.run_folders)
        console = Console(stderr=True, quiet=not sys.stderr.isatty())
        with console.status("evaluating") as status:

            def progress(what: str) -> None:
                status.update(f"evaluating {what}")

            if digits:
                subjects = digits_subjects(digits, data=self.data, samples=self.samples)
                rows = compare_digits(subjects, progress)
                text = render_digits(rows, markdown=self.markdown)
            else:
                rows = compare(
                    languages,
                    data=self.data,
                    cache=cache_folder(),
                    samples=self.samples,
                    dynamic=self.dynamic,
                    lr=self.lr,
                    progress=progress,
                )
                text = render(rows, markdown=self.markdown)
        print(json.dumps([row.as_json() for row in rows]) if self.json else text)
