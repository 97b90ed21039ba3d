"""Digits from IDX files and from scikit-learn."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesrnn.tasks.digits.data import load_digits, read_idx

MNIST = Path(__file__).parents[4] / "shared" / "data" / "mnist"


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim])
    return head + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    """Six training and two test images of 4 x 4 pixels, one split gzipped."""
    rng = np.random.default_rng(0)
    for name, count, pack in [("train", 12, gzip.compress), ("t10k", 2, bytes)]:
        ending = ".gz" if pack is gzip.compress else ""
        pictures, labels = rng.integers(0, 256, (count, 4, 4)), np.arange(count) % 10
        (tmp_path / f"{name}-images-idx3-ubyte{ending}").write_bytes(pack(idx(pictures)))
        (tmp_path / f"{name}-labels-idx1-ubyte{ending}").write_bytes(pack(idx(labels)))
    return tmp_path


def test_idx_files_gzipped_or_not(folder):
    digits = load_digits(str(folder))
    assert [len(split) for split in (digits.train, digits.valid, digits.test)] == [10, 2, 2]
    assert digits.train.x.shape == (10, 1, 4, 4)
    raw = read_idx(folder / "train-images-idx3-ubyte.gz")
    assert torch.equal(digits.valid.x[:, 0], torch.from_numpy(raw[10:]).float() / 127.5)
    assert digits.test.y.tolist() == [0, 1]
    assert len(load_digits(str(folder), valid=5).train) == 7


def test_the_embedded_digits():
    digits = load_digits("digits")
    assert len(digits.train) + len(digits.valid) + len(digits.test) == 1797
    assert digits.train.x.shape[1:] == (1, 8, 8)
    assert 0 == digits.train.x.min() < digits.train.x.max() == 2
    assert load_digits("digits", white=1.0).train.x.max() == 1
    assert set(digits.test.y.tolist()) == set(range(10))


def test_the_real_mnist():
    if not MNIST.is_dir():
        pytest.skip("needs MNIST in shared/data/mnist beside the project")
    digits = load_digits(str(MNIST))
    assert [len(split) for split in (digits.train, digits.valid, digits.test)] == [
        50_000,
        10_000,
        10_000,
    ]
    assert digits.train.y[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert digits.test.y.bincount().tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]


def test_bad_files(folder):
    def fails(message: str, name: str, raw: bytes) -> None:
        path = folder / name
        before = path.read_bytes()
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=message):
            load_digits(str(folder))
        path.write_bytes(before)

    images, labels = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
    whole = (folder / images).read_bytes()
    fails("truncated or damaged", images, whole[:-5])
    fails("truncated or damaged", images, whole + b"x")
    fails("within its head", images, whole[:9])
    fails("not an IDX file", images, b"PNG")
    fails("not an IDX file", images, b"")
    fails("2 t10k images but 3 labels", labels, idx(np.array([1, 2, 3])))
    fails("label is 12; digits go from 0 to 9", labels, idx(np.array([1, 12])))
    fails("must have 3 dimensions, and labels 1", labels, idx(np.zeros((2, 2))))
    packed = "train-images-idx3-ubyte.gz"
    fails("cannot read", packed, (folder / packed).read_bytes()[:-20])
    (folder / labels).unlink()
    with pytest.raises(ValueError, match="neither t10k-labels"):
        load_digits(str(folder))
    with pytest.raises(ValueError, match="no such folder"):
        load_digits(str(folder / "missing"))
