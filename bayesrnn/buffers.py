"""Buffers: the memory of flat vectors, used again instead of asked for again.

A fresh vector of 20 million weights costs more than to fill it: the system hands it out page by
page.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

MOST = 10
"""How many vectors are kept track of; more than a step of any method has at once."""


class Buffers:
    """Flat vectors like a given one, each used again once nobody else holds it or a view of it."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._vectors: list[Tensor] = []

    def take(self) -> Tensor:
        """An uninitialised vector that nobody else holds."""
        # Counted beside a vector that surely is alone: what calls this may hold references of its own.
        candidates = [torch.empty(1), *self._vectors]
        alone = _holders(candidates, 0)
        for index in range(1, len(candidates)):
            references, *others = _holders(candidates, index)
            if (references - 1, *others) == alone:  # one more from the list of vectors
                return candidates[index]
        with torch.inference_mode(False):  # a vector made inside that mode is of no use outside
            vector = torch.empty_like(self._like)
        if len(self._vectors) < MOST:
            self._vectors.append(vector)
        return vector


def has_views(vector: Tensor) -> bool:
    """Whether other tensors share the vector's memory."""
    alone = torch.empty(1)
    return _uses(vector.untyped_storage()) > _uses(alone.untyped_storage())


def _uses(memory: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(memory._cdata)


def _holders(vectors: list[Tensor], index: int) -> tuple[int, ...]:
    """References from Python and from C++, to the vector and to its memory."""
    vector = vectors[index]
    memory = vector.untyped_storage()
    return (
        sys.getrefcount(vector),
        vector._use_count(),  # pyright: ignore[reportAttributeAccessIssue]
        sys.getrefcount(memory),
        _uses(memory),
    )
