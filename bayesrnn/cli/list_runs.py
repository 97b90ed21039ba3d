"""`bayesrnn list`: the runs under a folder, and how far each has come.

The file is not called list.py: a module of that name would replace Python's `list` in this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from bayesrnn.cli.console import one_line, show, show_json

if TYPE_CHECKING:
    from bayesrnn.training.survey import Surveyed

RUNS = Path("runs")


@dataclass(frozen=True)
class ListRuns:
    """List the runs under a folder: method, epochs done, best value, and whether they are finished."""

    folder: Positional[Path] = RUNS
    """Folder to search for runs, subfolders included; links are not followed."""
    json: bool = False
    """Print the list as JSON."""

    def run(self) -> None:
        from bayesrnn.report.table import text_table
        from bayesrnn.training.survey import survey

        begun = self.folder != RUNS or self.folder.exists()
        runs = survey(self.folder) if begun else []
        if self.json:
            show_json([_as_json(run) for run in runs])
        elif not begun:
            show("no runs yet: `bayesrnn train` makes runs/.")
        elif not runs:
            show(one_line(f"{self.folder} has no runs."))
        else:
            headings = ["run", "task", "method", "epochs", "best", "state", "last change"]
            show(text_table(headings, [_cells(run) for run in runs]))
            for run in runs:
                if run.problem:
                    show(one_line(f"damaged: {run.problem}"))


def _cells(run: Surveyed) -> list[str]:
    epochs = "-" if run.planned is None else f"{run.epochs} of {run.planned}"
    changed = datetime.fromtimestamp(run.changed).strftime("%Y-%m-%d %H:%M")
    known = [run.task or "-", run.method or "-", epochs, run.best_text or "-"]
    return [str(run.folder), *known, run.state, changed]


def _as_json(run: Surveyed) -> dict[str, Any]:
    changed = datetime.fromtimestamp(run.changed, UTC).isoformat(timespec="seconds")
    return {
        "run": str(run.folder),
        "task": run.task,
        "method": run.method,
        "epochs": run.epochs,
        "planned_epochs": run.planned,
        "best": run.best,
        "best_text": run.best_text,
        "state": run.state,
        "last_change": changed,
        "problem": run.problem,
    }
