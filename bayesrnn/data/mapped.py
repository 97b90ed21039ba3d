"""Tensors in memory-mapped files, of which no more stays in memory than was read lately."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from bayesrnn.torch_private import versions

KEPT = 1 << 24
"""Bytes that are read of a file before its pages are let go.

What is resident can be more: at every place that is read the system maps what lies around it, 64 KB or, since
Linux 6.18, up to 2 MB. That depends on the number of streams, not on the length of the text.
"""


def map_tokens(path: Path) -> Tensor:
    """A file of int32 as a tensor: copy-on-write, so that nothing written to the tensor changes the file."""
    with path.open("rb") as file:
        mapping = _Mapping(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensor = torch.from_numpy(np.frombuffer(mapping, np.int32))  # which keeps the mapping alive
    _MAPPINGS[tensor.data_ptr()] = mapping
    return tensor


def was_read(tensor: Tensor, numbers: int) -> None:
    """Say that so many numbers of a tensor were read. If it is mapped, its pages are let go now and then.

    The system takes them from the file again when they are needed. For other tensors nothing happens, nor for
    one that was written to: what was written is in the pages alone.
    """
    mapping = _MAPPINGS.get(tensor.untyped_storage().data_ptr())
    if mapping is None:
        return
    mapping.lately += numbers * tensor.element_size()
    if mapping.lately >= KEPT:
        mapping.lately = 0
        if _CAN_LET_GO and not tensor.is_inference() and versions(tensor) == (0,):
            mapping.madvise(mmap.MADV_DONTNEED)


class _Mapping(mmap.mmap):
    """A mapped file, and how many of its bytes were read since its pages were let go."""

    lately = 0


_MAPPINGS: WeakValueDictionary[int, _Mapping] = WeakValueDictionary()
"""By address."""

# Elsewhere the same name promises less, and the pages of a file are reclaimed as the system sees fit.
_CAN_LET_GO = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")
