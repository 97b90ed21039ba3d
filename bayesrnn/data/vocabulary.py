"""The words a model knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True)
class Vocabulary:
    """The words a model knows; a word's token is its index."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @property
    def end(self) -> int:
        return self.index[END]

    @property
    def unknown(self) -> int:
        return self.index[UNKNOWN]

    def encode(self, words: Iterable[str]) -> list[int]:
        """Words as tokens; unknown words become `<unk>`."""
        return list(map(self.index.get, words, repeat(self.unknown)))

    @classmethod
    def build(
        cls, lines: Iterable[list[str]], size: int | None = None, *, min_count: int = 1
    ) -> Vocabulary:
        """The words that occur `min_count` times or more, at most the `size` most frequent ones.

        `<unk>` and `<eos>` are always among them.
        """
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line)
            counts[END] += 1
        return cls.of_counts(counts, size, min_count=min_count)

    @classmethod
    def of_counts(
        cls, counts: Mapping[str, int], size: int | None = None, *, min_count: int = 1
    ) -> Vocabulary:
        """As `build`, from how often each word occurs, `<eos>` for the ends of lines."""
        special = {UNKNOWN, END}
        words = [word for word, count in counts.items() if count >= min_count or word in special]
        words += [word for word in special if word not in counts]
        ranked = sorted(words, key=lambda word: (-counts.get(word, 0), word))
        if size is not None and len(ranked) > size:
            kept = set([word for word in ranked if word not in special][: size - 2]) | special
            ranked = [word for word in ranked if word in kept]
        return cls(tuple(ranked))

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Read a file with one word per line; ValueError if that is not what it is."""
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror or error}.") from None
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not a vocabulary: not UTF-8 at byte {error.start}."
            ) from None
        # Only these end a line: any other control character is part of a word.
        *words, rest = text.replace("\r\n", "\n").split("\n")
        if UNKNOWN not in words or END not in words:
            raise ValueError(f"{path} is not a vocabulary: it lacks {UNKNOWN} or {END}.")
        if rest:
            raise ValueError(
                f"{path} is cut off: its last line has no end. Restore it from a copy."
            )
        if len(set(words)) < len(words):
            raise ValueError(f"{path} is damaged: it has a word twice. Restore it from a copy.")
        return cls(tuple(words))

    def text(self) -> str:
        return "\n".join((*self.words, ""))
