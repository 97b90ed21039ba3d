"""`bayesrnn compare`: the paper's Table 1 for your runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Compare:
    """Compare runs of one kind in a table: perplexity or error, speed and size."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders, all of one kind."""
    samples: int = 0
    """Also predict with an average over this many samples of the weights, where a run can be sampled."""
    dynamic: bool = False
    """Also measure language models with dynamic evaluation."""
    lr: float = 0.1
    """Learning rate of dynamic evaluation."""
    data: str | None = None
    """Other data than the runs' own, or where their data are now."""
    markdown: bool = False
    """Print the table as Markdown."""
    json: bool = False
    """Print JSON."""

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
        if self.json:
            print(json.dumps(list(found.rows)))
        else:
            table = markdown_table if self.markdown else text_table
            print(table(found.headings, found.cells))
