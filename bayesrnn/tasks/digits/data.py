"""Handwritten digits: MNIST from its IDX files, or scikit-learn's 8x8 digits, which need no download."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from bayesrnn.files import printable

CLASSES = 10
_IDX_BYTES = 0x08

MOST_BYTES = 2_000_000_000
"""Larger IDX files are refused; unpacked, if they are gzipped."""
MOST_RATIO = 50
"""A gzipped file may become this many times larger, unless it is smaller than `SMALL` then."""
SMALL = 10_000_000


@dataclass(frozen=True)
class Images:
    """Images (examples, 1, height, width) and their classes."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, span: slice) -> Images:
        return Images(self.x[span], self.y[span])


@dataclass(frozen=True)
class Digits:
    """The three splits; the validation examples are the last ones of the training files."""

    name: str
    train: Images
    valid: Images
    test: Images

    def split(self, name: str) -> Images:
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]


def load_digits(data: str, valid: int = 0, *, white: float = 2.0) -> Digits:
    """Load `digits`, scikit-learn's 8x8 images, or a folder with MNIST's four IDX files, gzipped or not.

    `valid` training examples are held out for validation; 0 for a sixth. Pixels range from 0 to `white`.
    """
    if data == "digits":
        name, train, test = "digits", *_small_digits(white)
    else:
        folder = _folder(data)
        name, train, test = (
            folder.resolve().name,
            *(_split(folder, s, white) for s in ("train", "t10k")),
        )
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = [" x ".join(map(str, split.x.shape[2:])) for split in (train, test)]
        raise ValueError(
            f"{printable(data)}: the training images have {sizes[0]} pixels, and those of t10k {sizes[1]}."
        )
    held_out = valid or len(train) // 6
    if not 0 < held_out < len(train):
        raise ValueError(
            f"valid = {held_out} of {len(train)} training examples leaves none to train on."
        )
    remaining = len(train) - held_out
    return Digits(name, train[:remaining], train[remaining:], test)


def _folder(data: str) -> Path:
    try:
        folder = Path(data).expanduser()
        if folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, ~ of nobody, no permission
        pass
    raise ValueError(
        f"--data {printable(data)}: no such folder; give one with MNIST's IDX files, or use digits."
    )


def _split(folder: Path, name: str, white: float) -> Images:
    pictures = read_idx(_find(folder, f"{name}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{name}-labels-idx1-ubyte"))
    if pictures.ndim != 3 or labels.ndim != 1:
        raise ValueError(f"{folder}: {name} images must have 3 dimensions, and labels 1.")
    if len(pictures) != len(labels):
        raise ValueError(f"{folder}: {len(pictures)} {name} images but {len(labels)} labels.")
    if labels.size and labels.max() >= CLASSES:
        raise ValueError(f"{folder}: a {name} label is {labels.max()}; digits go from 0 to 9.")
    if not len(pictures):
        raise ValueError(f"{folder}: there are no {name} images.")
    x = torch.from_numpy(pictures).float().div_(255 / white)[:, None]
    return Images(x, torch.from_numpy(labels).long())


def read_idx(path: Path) -> np.ndarray:
    """The bytes of an IDX file, gzipped or not, in the shape given by its header.

    Memory is limited by the header, and the header by the size of the file.
    """
    shown = printable(str(path))
    try:
        with _unpacked(path) as (file, most):
            shape = _read_header(file, shown)
            size = math.prod(shape)
            if size > most:
                raise ValueError(
                    f"{shown}: its header says {size:,} bytes of data, more than the file can hold; it is "
                    "truncated or damaged: download it again."
                )
            values = np.empty(size, np.uint8)
            found = _fill(file, values)
            more = len(file.read(1))
    except (OSError, EOFError, zlib.error) as error:
        reason = printable(str(error))
        raise ValueError(f"cannot read {shown}: {reason}. Download the file again.") from None
    if found != size or more:
        what = f"more than {size:,}" if more else f"{found:,}"
        raise ValueError(
            f"{shown} has {what} bytes of data, but its header says {size:,}; it is truncated or damaged: "
            "download it again."
        )
    return values.reshape(shape)


@contextmanager
def _unpacked(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file, unpacked as it is read, and the most bytes that it can reasonably hold."""
    with path.open("rb") as file:
        size = path.stat().st_size
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=file) as inside:
                yield inside, min(MOST_BYTES, max(SMALL, MOST_RATIO * size))  # pyright: ignore
        else:
            yield file, min(MOST_BYTES, size)


def _read_header(file: BinaryIO, shown: str) -> tuple[int, ...]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _IDX_BYTES:
        raise ValueError(f"{shown} is not an IDX file of bytes.")
    raw = file.read(4 * head[3])
    if len(raw) < 4 * head[3]:
        raise ValueError(f"{shown} is truncated within its header; download the file again.")
    shape = tuple(np.frombuffer(raw, ">u4").tolist())
    if not 1 <= len(shape) <= 3 or 0 in shape:
        raise ValueError(f"{shown} holds no images and no labels: its shape is {shape}.")
    return shape


def _fill(file: BinaryIO, values: np.ndarray) -> int:
    """Read bytes until `values` is full or the file ends; returns their number."""
    found = 0
    while part := file.read(min(1 << 20, len(values) - found)):
        values[found : found + len(part)] = np.frombuffer(part, np.uint8)
        found += len(part)
    return found


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise ValueError(f"{folder} has neither {name} nor {name}.gz.")


def _small_digits(white: float) -> tuple[Images, Images]:
    """1,797 handwritten digits; the last fifth, mostly by other writers, is the test split."""
    try:
        from sklearn.datasets import load_digits as small
    except ImportError:
        raise ValueError(
            "--data digits needs scikit-learn: pip install 'bayesrnn[digits]', or name a folder of IDX files."
        ) from None
    pictures, labels = small(return_X_y=True)
    x = torch.from_numpy(pictures).float().div_(16 / white).view(-1, 1, 8, 8)
    whole = Images(x, torch.from_numpy(labels).long())
    train = len(whole) * 4 // 5
    return whole[:train], whole[train:]
