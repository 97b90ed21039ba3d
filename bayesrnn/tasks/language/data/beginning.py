"""The beginning of a text, to train on less of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bayesrnn.files import sha256_of_text
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
        left = self.words
        for line in self.source.lines(split):
            left -= len(line) + 1
            if split == "train" and left < 0:
                return
            yield line

    def fingerprint(self) -> str:
        return f"{self.words} {self.source.fingerprint()}"

    def digest(self, memory: Path | None = None) -> str:
        return sha256_of_text(f"{self.words} {self.source.digest(memory)}")
