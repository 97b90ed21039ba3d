"""The lines of a text in batches, from any place that was reached before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from bayesrnn.tasks.language.data.corpus import Source

BATCH_BYTES = 1 << 14
"""Of text in a batch, about: few enough that its words stay in the processor's cache."""
BATCH_LINES = 1000

Place = list[Any]
"""Where a batch begins: whatever its source wants to know, as JSON has it. The beginning is empty."""


class Batch(NamedTuple):
    """Some lines, where the next batch begins, and the share of the split that was read then, if known."""

    lines: list[list[str]]
    place: Place
    share: float | None


@runtime_checkable
class Seekable(Protocol):
    """A source that can begin at a place without reading what comes before it."""

    def batches(self, split: str, place: Place) -> Iterator[Batch]: ...


def batches(source: Source, split: str, place: Place) -> Iterator[Batch]:
    """The lines of a split from a place on; a source that cannot seek is read to there."""
    if isinstance(source, Seekable):
        yield from source.batches(split, place)
        return
    (done,) = place or [0]
    lines = islice(source.lines(split), done, None)
    while batch := list(islice(lines, BATCH_LINES)):
        done += len(batch)
        yield Batch(batch, [done], None)
