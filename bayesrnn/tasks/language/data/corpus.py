"""Corpora: a vocabulary, and each split as one memory-mapped array of tokens."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bayesrnn.data.vocabulary import Vocabulary

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
