"""The beginning of a text, to train on less of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from bayesrnn.files import sha256_of_text
from bayesrnn.tasks.language.data.batches import Batch, Place, batches
from bayesrnn.tasks.language.data.corpus import Source


@dataclass(frozen=True)
class Beginning:
    """A text whose training split ends early; validation and test text are as they were."""

    source: Source
    words: int
    """Upper limit on the words of the training split, each line's `<eos>` among them; lines stay whole."""

    @property
    def name(self) -> str:
        return self.source.name

    def lines(self, split: str) -> Iterator[list[str]]:
        for batch in self.batches(split, []):
            yield from batch.lines

    def batches(self, split: str, place: Place) -> Iterator[Batch]:
        """The lines from a place on: the words before it, and the place in the source."""
        words, start = place or (0, [])
        for lines, inner, share in batches(self.source, split, start):
            if split != "train":
                yield Batch(lines, [words, inner], share)
                continue
            ends = list(accumulate((len(line) + 1 for line in lines), initial=words))[1:]
            kept = lines[: bisect_right(ends, self.words)]
            words = ends[-1] if ends else words
            yield Batch(kept, [words, inner], max(share or 0.0, min(words / self.words, 1.0)))
            if words > self.words:
                return

    def fingerprint(self) -> str:
        return f"{self.words} {self.source.fingerprint()}"

    def digest(self, memory: Path | None = None) -> str:
        return sha256_of_text(f"{self.words} {self.source.digest(memory)}")
