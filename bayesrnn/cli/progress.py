"""A progress bar on standard error, so that results on standard output can be piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayesrnn.cli.console import one_line


@contextmanager
def steps(total: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar with the time left; yields `advance(description, amount)`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda what, count: bar.update(task, description=one_line(what), advance=count)
