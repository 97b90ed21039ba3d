"""Handwritten digits: MNIST from its IDX files, or scikit-learn's 8x8 digits, which need no download."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CLASSES = 10
_IDX_BYTES = 0x08


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


def load_digits(data: str, valid: int = 0, *, white: float = 2.0) -> Digits:
    """Load `digits`, scikit-learn's 8x8 images, or a folder with MNIST's four IDX files, gzipped or not.

    `valid` training examples are held out for validation; 0 for a sixth. Pixels range from 0 to `white`.
    """
    if data == "digits":
        name, train, test = "digits", *_small_digits(white)
    else:
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise ValueError(
                f"--data {data}: no such folder; give one with MNIST's IDX files, or use digits."
            )
        name, train, test = (
            folder.resolve().name,
            *(_split(folder, s, white) for s in ("train", "t10k")),
        )
    held_out = valid or len(train) // 6
    if not 0 < held_out < len(train):
        raise ValueError(
            f"valid = {held_out} of {len(train)} training examples leaves none to train on."
        )
    remaining = len(train) - held_out
    return Digits(name, train[:remaining], train[remaining:], test)


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
    """The bytes of an IDX file, gzipped or not, in the shape given by its header."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}. Download the file again.") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _IDX_BYTES:
        raise ValueError(f"{path} is not an IDX file of bytes.")
    dimensions = raw[3]
    head = 4 + 4 * dimensions
    if len(raw) < head:
        raise ValueError(f"{path} is truncated within its header; download the file again.")
    shape = np.frombuffer(raw, ">u4", dimensions, offset=4)
    size = int(np.prod(shape, dtype=np.int64))
    if len(raw) - head != size:
        raise ValueError(
            f"{path} has {len(raw) - head:,} bytes of data, but its header says {size:,}; it is truncated "
            "or damaged: download it again."
        )
    return np.frombuffer(raw, np.uint8, size, offset=head).reshape(shape).copy()


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
