"""Which workers are alive: each counts while it trains, and the others see whether the count goes on.

No worker reads another's clock: machines need not agree on the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

BEAT = "beat"
"""The attribute of a trial that its worker counts in."""


class Taken(Exception):
    """The trial was given to another worker, since this one was thought dead."""


@dataclass
class Heart:
    """Whether this worker's trial is still its own, as its last beat has found."""

    taken: bool = False

    def check(self) -> None:
        if self.taken:
            raise Taken


@contextmanager
def beating(beat: Callable[[int], None], seconds: float) -> Iterator[Heart]:
    """Inside the block a thread calls `beat` with 1, 2, ... every so many seconds, until it raises Taken."""
    heart, over = Heart(), threading.Event()

    def count() -> None:
        number = 0
        while True:
            number += 1
            try:
                beat(number)
            except Taken:
                heart.taken = True
                return
            except Exception:  # a storage that fails for good fails in the worker's own thread too
                pass
            if over.wait(seconds):
                return

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield heart
    finally:
        over.set()
        with suppress(RuntimeError):
            thread.join(timeout=10)


@dataclass
class Watch:
    """Finds the trials whose count has stood still for long, by this machine's clock."""

    dead_after: float
    clock: Callable[[], float] = time.monotonic
    _seen: dict[int, tuple[Any, float]] = field(default_factory=dict)

    def dead(self, beats: Mapping[int, Any]) -> list[int]:
        """Of these running trials, given with their counts, those that have not counted for `dead_after`."""
        now = self.clock()
        self._seen = {number: seen for number, seen in self._seen.items() if number in beats}
        for number, beat in beats.items():
            if number not in self._seen or self._seen[number][0] != beat:
                self._seen[number] = (beat, now)
        return [n for n, (_, since) in self._seen.items() if now - since >= self.dead_after]
