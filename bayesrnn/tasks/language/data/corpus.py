"""Corpora: a vocabulary, and each split as one memory-mapped array of tokens.

Both are made once and kept in the cache, under a digest of the text. What was kept is used only while its
own digest is right; otherwise it is made again.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bayesrnn.data.verified import Sink, is_intact, notice, write_recorded
from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.files import printable

SPLITS = ("train", "valid", "test")
_FORMAT = 3
_TOKENS_AT_ONCE = 1 << 16


class Source(Protocol):
    """A source of text with three splits."""

    @property
    def name(self) -> str: ...

    def lines(self, split: str) -> Iterator[list[str]]:
        """The words of each line of a split, without `<eos>`."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the text is touched; quick."""
        ...

    def digest(self, memory: Path | None = None) -> str:
        """A digest of the text, wherever it lies; remembered in the folder `memory`, if one is given."""
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
    digest: str = ""
    """`corpus_digest` of the text that the tokens were made from."""


def corpus_digest(source: Source, cache: Path) -> str:
    """A SHA-256 of the text of all splits, the same wherever the text lies; read once, then remembered."""
    return source.digest(cache / "digests")


def load_corpus(source: Source, vocabulary_size: int | None, cache: Path) -> Corpus:
    """The whole corpus, with the vocabulary of its training split."""
    text = _Text.of(source, cache)
    return _encode(text, _load_vocabulary(text, vocabulary_size))


def encode_corpus(source: Source, vocabulary: Vocabulary, cache: Path) -> Corpus:
    """The whole corpus, encoded with an existing vocabulary."""
    return _encode(_Text.of(source, cache), vocabulary)


def load_split(source: Source, split: str, vocabulary: Vocabulary, cache: Path) -> Tensor:
    """One split as an int32 tensor backed by a memory-mapped file, which is written on first use."""
    return _load_split(_Text.of(source, cache), split, vocabulary)


@dataclass(frozen=True)
class _Text:
    """A source, what it holds at present, and the cache."""

    source: Source
    fingerprint: str
    digest: str
    cache: Path

    @classmethod
    def of(cls, source: Source, cache: Path) -> _Text:
        return cls(source, source.fingerprint(), corpus_digest(source, cache), cache)

    def file(self, kind: str, ending: str, *parts: str) -> Path:
        """The file in the cache for something made from this text and from `parts`."""
        key = hashlib.sha256(json.dumps([_FORMAT, self.digest, *parts]).encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.-]", "-", self.source.name, flags=re.ASCII).strip(".")[:40]
        return self.cache / f"{name}-{kind}-{key}.{ending}"

    def check_unchanged(self) -> None:
        if self.source.fingerprint() != self.fingerprint:
            raise ValueError(
                f"the text of {printable(self.source.name)} changed while it was read; start again."
            )


def _encode(text: _Text, vocabulary: Vocabulary) -> Corpus:
    tensors = [_load_split(text, split, vocabulary) for split in SPLITS]
    return Corpus(text.source.name, vocabulary, *tensors, digest=text.digest)


def _load_split(text: _Text, split: str, vocabulary: Vocabulary) -> Tensor:
    path = text.file(split, "tokens", split, vocabulary.text())

    def write(file: Sink) -> dict[str, Any]:
        tokens = _write_tokens(file, text.source, split, vocabulary)
        text.check_unchanged()
        return {"tokens": tokens}

    _ensure(path, write, {"vocabulary": len(vocabulary)})
    tokens = np.memmap(path, dtype=np.int32, mode="c")  # copy-on-write: never changes the file
    return torch.from_numpy(tokens)


def _load_vocabulary(text: _Text, size: int | None) -> Vocabulary:
    path = text.file("vocabulary", "txt", str(size))

    def write(file: Sink) -> None:
        file.write(Vocabulary.build(text.source.lines("train"), size).text().encode())
        text.check_unchanged()

    _ensure(path, write, {})
    return Vocabulary.read(path)


def _ensure(
    path: Path, write: Callable[[Sink], dict[str, Any] | None], facts: dict[str, Any]
) -> None:
    """Have a file in the cache that is known to be intact: the one that is there, or a new one."""
    if is_intact(path, facts):
        return
    if path.exists():
        notice(f"{path} in the cache is damaged or was never verified; it is made again.")
    try:
        write_recorded(path, write, facts)
    except OSError as error:
        raise ValueError(
            f"cannot write {printable(str(path))}: {error.strerror or error}. Set BAYESRNN_CACHE to a folder "
            "that can be written."
        ) from None


def _write_tokens(file: Sink, source: Source, split: str, vocabulary: Vocabulary) -> int:
    """Write the tokens of a split; returns their number."""
    words = written = 0
    tokens = array("i", [vocabulary.end])
    for line in source.lines(split):
        tokens.extend([*vocabulary.encode(line), vocabulary.end])
        words += len(line)
        if len(tokens) >= _TOKENS_AT_ONCE:
            written += file.write(tokens.tobytes()) // tokens.itemsize
            tokens = array("i")
    written += file.write(tokens.tobytes()) // tokens.itemsize
    if words == 0:
        raise ValueError(f"the {split} split of {printable(source.name)} has no words.")
    return written
