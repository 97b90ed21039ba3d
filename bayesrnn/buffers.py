"""Buffers: the memory of flat vectors, used again instead of asked for again.

A fresh vector of 20 million weights costs more than to fill it: the system hands it out page by
page.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

KEPT = 3
"""How many idle vectors are kept."""


class Buffers:
    """Flat vectors like a given one."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._idle: list[Tensor] = []
        self._lent: list[Tensor] = []

    def take(self) -> Tensor:
        """An uninitialised vector."""
        if not self._idle:
            self._collect()
        if self._idle:
            return self._idle.pop()
        with torch.inference_mode(False):  # a vector made inside that mode is of no use outside
            return torch.empty_like(self._like)

    def give(self, *vectors: Tensor) -> None:
        """Take back vectors that nobody else has."""
        self._idle.extend(vectors)
        del self._idle[KEPT:]

    def lend(self, vector: Tensor) -> None:
        """Take a vector back as soon as nobody else has it, nor a view of it."""
        if all(vector is not lent for lent in self._lent):
            self._lent.append(vector)
        del self._lent[:-KEPT]

    def _collect(self) -> None:
        # Counted beside a vector that surely is alone: what calls this may hold references of its own.
        lent, self._lent = [torch.empty(1), *reversed(self._lent)], []
        alone = None
        while lent:
            vector = lent.pop() if alone else lent.pop(0)
            holders = _holders(vector)
            if alone is None:
                alone = holders
            elif holders == alone:
                self.give(vector)
            else:
                self._lent.append(vector)


def _holders(vector: Tensor) -> tuple[int, int, int]:
    """References from Python, from tensors in C++, and from other tensors to the same memory."""
    storage = vector.untyped_storage()
    in_memory = torch._C._storage_Use_Count(storage._cdata)
    return sys.getrefcount(vector), vector._use_count(), in_memory  # pyright: ignore[reportAttributeAccessIssue]
