"""The features of images, in one file: keyed by image and by encoder, extended as images are added."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrnn.files import printable
from bayesrnn.storage import load_tensors, save_tensors
from bayesrnn.tasks.captions.data.images import decode
from bayesrnn.tasks.captions.encoders.encoder import Encoder

FORMAT = "bayesrnn-image-features-1"
IMAGES_AT_ONCE = 8
"""Few enough for the maps of a convolutional network to stay in the cache of a CPU."""
SECONDS_BETWEEN_WRITES = 60.0
MOST_FEATURES = 1_000_000
"""Of an image; no encoder has more, and a file without images could claim any number."""


@dataclass(frozen=True)
class Features:
    """The features of images by name, made by one encoder."""

    encoder: str
    """The encoder's name, to make it again."""
    key: str
    """The encoder's key: features of equal keys go together."""
    rows: Tensor  # (images, size)
    index: Mapping[str, int]
    """The row of each image, by its name."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each image file."""

    @property
    def size(self) -> int:
        return self.rows.shape[1]

    def of(self, names: Sequence[str]) -> Tensor:
        """The features (N, size) of some images."""
        return self.rows[torch.tensor([self.index[name] for name in names], dtype=torch.long)]

    def save(self, path: Path) -> None:
        header = {
            "format": FORMAT,
            "encoder": self.encoder,
            "key": self.key,
            "images": list(self.index),
            "digests": [self.digests.get(name, "") for name in self.index],
        }
        save_tensors(path, {"features": self.rows}, header)


def load_features(path: Path) -> Features:
    """Read a file written by `Features.save`."""
    tensors, header = load_tensors(path)
    names, digests = _texts(header.get("images")), _texts(header.get("digests"))
    rows = tensors.get("features")
    encoder, key = header.get("encoder"), header.get("key")
    if header.get("format") != FORMAT or rows is None or rows.dim() != 2:
        raise ValueError(f"{path} is not a file of image features.")
    if not rows.dtype.is_floating_point or not 0 < rows.shape[1] <= MOST_FEATURES:
        raise ValueError(
            f"{path} is not a file of image features: they are {tuple(rows.shape)} of {rows.dtype}."
        )
    if not len(names) == len(digests) == len(rows) == len(set(names)):
        raise ValueError(f"{path} is damaged: its images and its features do not match.")
    if not (isinstance(encoder, str) and isinstance(key, str)):
        raise ValueError(f"{path} is damaged: it does not say which encoder made it.")
    rows = rows.float()
    if not rows.isfinite().all():
        raise ValueError(f"{path} is damaged: a feature is no finite number. Compute them again.")
    index = {name: row for row, name in enumerate(names)}
    return Features(
        encoder,
        key,
        rows,
        index,
        dict(zip(names, digests, strict=True)),
    )


@dataclass(frozen=True)
class Extracted:
    """The features of the images asked for that can be read, and what is wrong with the others."""

    features: Features
    skipped: Mapping[str, str]
    """The images that were left out, and why."""
    computed: int
    """Number of images that the encoder was run on; the others were in the file already."""


def extract(
    names: Sequence[str],
    read: Callable[[str], bytes],
    encoder: Encoder,
    path: Path,
    progress: Callable[[int], None] = lambda images: None,
) -> Extracted:
    """The features of the images, from the file at `path` and, where it lacks them, from the encoder.

    The file is written about every minute and at the end, also when interrupted: the next call goes on
    from there. An image whose file has changed is encoded again.
    """
    known = _known(path, encoder)
    store = _Store(known, encoder, path)
    skipped: dict[str, str] = {}
    computed = 0
    try:
        for group in _groups(names, IMAGES_AT_ONCE):
            images = {}
            for name in group:
                try:
                    content = read(name)
                    digest = hashlib.sha256(content).hexdigest()
                    if store.digests.get(name) != digest:
                        images[name] = encoder.prepare(decode(content)), digest
                except ValueError as error:
                    skipped[name] = str(error)
            if images:
                rows = encoder.encode([image for image, _ in images.values()])
                store.add({n: d for n, (_, d) in images.items()}, rows)
                computed += len(images)
            progress(len(group))
    finally:  # what is done is kept, whatever happens
        store.write()
    return Extracted(store.features(), skipped, computed)


class _Store:
    """The features so far, written to their file now and then."""

    def __init__(self, known: Features | None, encoder: Encoder, path: Path) -> None:
        self.encoder, self.path = encoder, path
        self.rows: list[Tensor] = [] if known is None else list(known.rows)
        self.index: dict[str, int] = {} if known is None else dict(known.index)
        self.digests: dict[str, str] = {} if known is None else dict(known.digests)
        self._written = time.monotonic()
        self._changed = False

    def add(self, digests: Mapping[str, str], rows: Tensor) -> None:
        for (name, digest), row in zip(digests.items(), rows, strict=True):
            if name in self.index:
                self.rows[self.index[name]] = row
            else:
                self.index[name] = len(self.rows)
                self.rows.append(row)
            self.digests[name] = digest
        self._changed = True
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self.write()

    def features(self) -> Features:
        rows = torch.stack(self.rows) if self.rows else torch.zeros(0, self.encoder.size)
        return Features(self.encoder.name, self.encoder.key, rows, self.index, self.digests)

    def write(self) -> None:
        if self._changed:
            self.features().save(self.path)
            self._changed = False
        self._written = time.monotonic()


def _known(path: Path, encoder: Encoder) -> Features | None:
    if not path.exists():
        return None
    known = load_features(path)
    check_key(known, encoder.key, path)
    if known.size != encoder.size:
        raise ValueError(
            f"{path} is damaged: an image has {known.size:,} features, and {encoder.size:,} by its encoder."
        )
    return known


def check_key(features: Features, key: str, source: object) -> None:
    """Raise ValueError unless the features were made by the encoder with this key."""
    if features.key != key:
        raise ValueError(
            f"{source} holds features of the encoder {_shown(features.key)}, not of {_shown(key)}; name "
            "another file, or the encoder that made it."
        )


def _shown(text: str) -> str:
    """A text from a file, fit for one line of a message."""
    return printable(" ".join(text.split()))[:100]


def _texts(values: Any) -> list[str]:
    """A list of texts in a header; empty if it is something else."""
    whole = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return values if whole else []


def _groups(names: Iterable[str], size: int) -> list[list[str]]:
    listed = list(dict.fromkeys(names))
    return [listed[start : start + size] for start in range(0, len(listed), size)]
