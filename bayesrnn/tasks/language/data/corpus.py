"""Corpora: a vocabulary, and each split as one memory-mapped array of tokens.

Both are made once and kept in the cache, under a digest of the text. What was kept is used only while its
own digest is right; otherwise it is made again. Making them streams through the text, shows how far it is if
that takes long, and goes on from a saved point if it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from bayesrnn.data.mapped import map_tokens
from bayesrnn.data.progress import progress
from bayesrnn.data.resumable import Partial, ensure
from bayesrnn.data.vocabulary import END, Vocabulary
from bayesrnn.files import printable
from bayesrnn.tasks.language.data.batches import Place, batches

SPLITS = ("train", "valid", "test")
_FORMAT = 3
_POINTS = 1
"""The format of saved points and of the places in them."""
_TOKEN_BYTES = np.dtype(np.int32).itemsize


class Source(Protocol):
    """A source of text with three splits.

    One for long texts also has `batches`, as in `Seekable`.
    """

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

    def write(file: Partial) -> dict[str, Any]:
        return {"tokens": _write_tokens(file, text, split, vocabulary)}

    _ensure(path, write, {"vocabulary": len(vocabulary)})
    return map_tokens(path)


def _load_vocabulary(text: _Text, size: int | None) -> Vocabulary:
    path = text.file("vocabulary", "txt", str(size))

    def write(file: Partial) -> None:
        file.write(Vocabulary.of_counts(_count_words(file, text), size).text().encode())

    _ensure(path, write, {})
    return Vocabulary.read(path)


def _ensure(
    path: Path, write: Callable[[Partial], dict[str, Any] | None], facts: dict[str, Any]
) -> None:
    try:
        ensure(path, write, facts, points=_POINTS)
    except OSError as error:
        raise ValueError(
            f"cannot write {printable(str(path))}: {error.strerror or error}. Set BAYESRNN_CACHE to a folder "
            "that can be written."
        ) from None


def _count_words(file: Partial, text: _Text) -> Counter[str]:
    """How often each word of the training split occurs."""
    point = file.point
    counts: Counter[str] = Counter(point.get("counts", {}))

    def reached(place: Place) -> dict[str, Any]:
        text.check_unchanged()
        return {"place": place, "counts": counts}

    with progress(f"counting the words of {text.source.name}") as tell:
        for lines, place, share in batches(text.source, "train", point.get("place", [])):
            counts.update(chain.from_iterable(lines))
            counts[END] += len(lines)
            tell(share)
            file.at_point(partial(reached, place))
    text.check_unchanged()
    return counts


def _write_tokens(file: Partial, text: _Text, split: str, vocabulary: Vocabulary) -> int:
    """Write the tokens of a split; returns their number."""
    index, unknown = vocabulary.index, vocabulary.unknown
    point = file.point
    words, written = point.get("words", 0), point.get("tokens", 0)
    if not point:
        written += file.write(np.int32(vocabulary.end).tobytes()) // _TOKEN_BYTES

    def reached(place: Place) -> dict[str, Any]:
        text.check_unchanged()
        return {"place": place, "words": words, "tokens": written}

    with progress(f"tokenising {text.source.name}, {split}") as tell:
        for lines, place, share in batches(text.source, split, point.get("place", [])):
            batch: list[str] = []
            for line in lines:
                batch += line
                batch.append(END)
            words += len(batch) - len(lines)
            tokens = np.fromiter(map(index.get, batch, repeat(unknown)), np.int32, len(batch))
            written += file.write(tokens.tobytes()) // _TOKEN_BYTES
            tell(share)
            file.at_point(partial(reached, place))
    text.check_unchanged()
    if words == 0:
        raise ValueError(f"the {split} split of {printable(text.source.name)} has no words.")
    return written
