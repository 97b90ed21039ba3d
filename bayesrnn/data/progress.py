"""How far long work on data is, on standard error: nothing at all if it does not take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bayesrnn.files import printable

PATIENCE = 2.0
"""Seconds of work before anything is shown."""
SECONDS_BETWEEN_LINES = 10.0
"""Without a terminal."""

Tell = Callable[[float | None], None]
"""Takes the share of the work that is done; None if that is not known."""


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """Yields a function to tell how far the work is; a bar in a terminal, elsewhere a line now and then."""
    shown = _Bar(what) if sys.stderr.isatty() else _Lines(what)
    try:
        yield shown.tell
    finally:
        shown.close()


class _Bar:
    """A bar with the time left, which vanishes when the work ends."""

    def __init__(self, what: str) -> None:
        self.what, self.began, self.first = what, time.monotonic(), None
        self.bar: Any = None

    def tell(self, share: float | None) -> None:
        if self.first is None:
            self.first = share or 0.0  # work that goes on from a saved point was not done just now
        if self.bar is None:
            if time.monotonic() - self.began < PATIENCE:
                return
            self.bar = self._start()
        left = _time_left(self.began, self.first, share)
        text = f"{printable(self.what)}{left}"
        self.bar.update(self.task, description=text, completed=share or 0, total=share and 1)

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn()
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = bar.add_task("", total=None)
        bar.start()
        return bar

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _Lines:
    """A line every `SECONDS_BETWEEN_LINES`."""

    def __init__(self, what: str) -> None:
        self.what, self.began, self.first = what, time.monotonic(), None
        self.last = self.began

    def tell(self, share: float | None) -> None:
        if self.first is None:
            self.first = share or 0.0
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = now
        done = "" if share is None else f" {share:.0%}"
        left = _time_left(self.began, self.first, share)
        print(f"bayesrnn: {printable(self.what)}{done}{left}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


def _time_left(began: float, first: float, share: float | None) -> str:
    """As `, 3 min left`, from the work done since `began`, when the share was `first`."""
    if share is None or share <= first:
        return ""
    seconds = (time.monotonic() - began) * (1 - share) / (share - first)
    if seconds < 90:
        return f", {seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f", {minutes} min left" if minutes < 90 else f", {minutes / 60:.1f} h left"
