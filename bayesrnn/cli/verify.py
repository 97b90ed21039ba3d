"""`bayesrnn verify`: whether the files of runs are intact."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from bayesrnn.cli.console import one_line, show, show_json


@dataclass(frozen=True)
class Verify:
    """Check that the files of runs are undamaged and belong together.

    One line for each file; the exit code is 1 if anything is wrong.
    """

    run_folders: Positional[tuple[Path, ...]]
    """Run folders."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        from bayesrnn.training.verify import verify

        if not self.run_folders:
            raise ValueError("give at least one run folder.")
        found = [verdict for folder in self.run_folders for verdict in verify(folder)]
        if self.json:
            show_json(
                [
                    {"file": str(v.file), "intact": v.problem is None, "problem": v.problem}
                    for v in found
                ]
            )
        else:
            for verdict in found:
                state = "ok     " if verdict.problem is None else "DAMAGED"
                show(one_line(f"{state}  {verdict.file}  {verdict.problem or verdict.note}"))
        if any(verdict.problem for verdict in found):
            sys.exit(1)
