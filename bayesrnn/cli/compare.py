"""`bayesrnn compare`: the paper's Table 1 for your runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Compare:
    """Compare runs of one experiment in a table: perplexity or error, speed and size."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders, all of the same experiment."""
    samples: int = 0
    """Number of weight samples to average over; 0 to skip. Runs that cannot be sampled ignore it."""
    dynamic: bool = False
    """Add dynamic evaluation (language models only)."""
    lr: float = 0.1
    """Learning rate of dynamic evaluation."""
    data: str | None = None
    """Data to evaluate on; by default the data each run was trained on."""
    markdown: bool = False
    """Print the table as Markdown."""
    json: bool = False
    """Print the table as JSON."""

    def run(self) -> None:
        from rich.console import Console

        from bayesrnn.report.table import markdown_table, text_table
        from bayesrnn.training.experiment import CompareOptions, open_runs

        if self.lr <= 0 or self.samples < 0:
            raise ValueError(
                f"lr = {self.lr} must be above 0, and samples = {self.samples} 0 or more."
            )
        experiment, runs = open_runs(self.run_folders)
        options = CompareOptions(self.samples, self.dynamic, self.lr, self.data)
        console = Console(stderr=True, quiet=not sys.stderr.isatty())
        with console.status("evaluating") as status:
            found = experiment.compare(
                runs, options, lambda what: status.update(f"evaluating {what}")
            )
        for note in found.notes:
            print(note, file=sys.stderr)
        if self.json:
            print(json.dumps(list(found.rows)))
        else:
            table = markdown_table if self.markdown else text_table
            print(table(found.headings, found.cells))
