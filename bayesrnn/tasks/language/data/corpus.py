"""Corpora: a vocabulary, and each split as one memory-mapped array of tokens."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

UNKNOWN, END = "<unk>", "<eos>"
SPLITS = ("train", "valid", "test")
_FORMAT = 2


class Source(Protocol):
    """A source of text with three splits."""

    @property
    def name(self) -> str: ...

    def lines(self, split: str) -> Iterator[list[str]]:
        """The words of each line of a split, without `<eos>`."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the text does."""
        ...


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
        index, unknown = self.index, self.unknown
        return [index.get(word, unknown) for word in words]

    @classmethod
    def build(cls, lines: Iterable[list[str]], size: int | None = None) -> Vocabulary:
        """The `size` most frequent words of a text, including `<unk>` and `<eos>`."""
        counts: Counter[str] = Counter({UNKNOWN: 0, END: 0})
        for line in lines:
            counts.update(line)
            counts[END] += 1
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if size is not None and len(ranked) > size:
            special = {UNKNOWN, END}
            kept = set([word for word in ranked if word not in special][: size - 2]) | special
            ranked = [word for word in ranked if word in kept]
        return cls(tuple(ranked))

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Read a file with one word per line."""
        words = path.read_text(encoding="utf-8").split("\n")[:-1]
        if UNKNOWN not in words or END not in words:
            raise ValueError(f"{path} is not a vocabulary: it lacks {UNKNOWN} or {END}.")
        return cls(tuple(words))

    def text(self) -> str:
        return "".join(f"{word}\n" for word in self.words)


@dataclass(frozen=True)
class Corpus:
    """A vocabulary and the splits of a text as tokens.

    Each split begins with one `<eos>` as context, so that a model reads `split[:-1]` and is scored
    on `split[1:]`: on every word of the text once.
    """

    name: str
    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor


def load_corpus(source: Source, vocabulary_size: int | None, cache: Path) -> Corpus:
    """The whole corpus, with the vocabulary of its training split."""
    return encode_corpus(source, _cached_vocabulary(source, vocabulary_size, cache), cache)


def encode_corpus(source: Source, vocabulary: Vocabulary, cache: Path) -> Corpus:
    """The whole corpus, encoded with an existing vocabulary."""
    tensors = [load_split(source, split, vocabulary, cache) for split in SPLITS]
    return Corpus(source.name, vocabulary, *tensors)


def load_split(source: Source, split: str, vocabulary: Vocabulary, cache: Path) -> Tensor:
    """One split as an int32 tensor backed by a memory-mapped file, which is written on first use."""
    key = _digest(source.fingerprint(), split, vocabulary.text())
    path = cache / f"{source.name}-{split}-{key}.tokens"
    if not path.exists():
        _replace(path, lambda temporary: _write_tokens(temporary, source, split, vocabulary))
    tokens = np.memmap(path, dtype=np.int32, mode="c")  # copy-on-write: never changes the file
    return torch.from_numpy(tokens)


def _cached_vocabulary(source: Source, size: int | None, cache: Path) -> Vocabulary:
    path = cache / f"{source.name}-vocabulary-{_digest(source.fingerprint(), str(size))}.txt"
    if not path.exists():
        vocabulary = Vocabulary.build(source.lines("train"), size)
        _replace(path, lambda temporary: temporary.write_text(vocabulary.text(), encoding="utf-8"))
    return Vocabulary.read(path)


def _write_tokens(path: Path, source: Source, split: str, vocabulary: Vocabulary) -> None:
    words = 0
    with path.open("wb") as file:
        array("i", [vocabulary.end]).tofile(file)
        for line in source.lines(split):
            array("i", [*vocabulary.encode(line), vocabulary.end]).tofile(file)
            words += len(line)
    if words == 0:
        raise ValueError(f"the {split} split of {source.name} has no words.")


def _replace(path: Path, write) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror}. Set BAYESRNN_CACHE to a folder that can be written."
        ) from None


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()[:16]
