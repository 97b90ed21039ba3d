"""Progress bars on standard error, so that results on standard output can be piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bayesrnn.cli.console import note, one_line

if TYPE_CHECKING:
    from rich.progress import Progress

    from bayesrnn.report.progress import Work


SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def steps(total: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar with the time left; yields `advance(description, amount)`.

    Without a terminal, a line now and then if it takes long.
    """
    if not sys.stderr.isatty():
        yield _Lines(total).advance
        return
    with _bar() as bar:
        task = bar.add_task("", total=total)
        yield lambda what, count: bar.update(task, description=one_line(what), advance=count)


class _Lines:
    """Says how far the work is, every `SECONDS_BETWEEN_LINES`."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.last = total, 0, time.monotonic()

    def advance(self, what: str, count: int) -> None:
        self.done += count
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            note(f"{self.done / self.total:4.0%}  {what}")


@contextmanager
def work(what: str) -> Iterator[Work]:
    """As `steps`, for work whose total is known later; without a terminal, a line for each stage."""
    from bayesrnn.report.progress import Work

    if not sys.stderr.isatty():
        yield Work(lambda stage: note(f"{stage} ..."))
        return
    with _bar() as bar:
        task = bar.add_task(one_line(what), total=None)
        yield Work(
            begin=lambda stage: bar.update(task, description=one_line(stage)),
            expect=lambda total: bar.update(task, total=total),
            advance=lambda amount: bar.advance(task, amount),
        )


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
