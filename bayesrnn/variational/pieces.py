"""Pieces: a flat vector that lies in several places, as autograd leaves the gradients of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

LARGE = 1 << 20
"""Size from which on a tensor is read where it lies; to copy a smaller one is cheaper than another call."""


@dataclass(frozen=True)
class Pieces:
    """The vector that its parts would be if they were joined; each part is one-dimensional."""

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Pieces:
        """Large tensors as they are, neighbouring small ones copied together."""
        parts: list[Tensor] = []
        flat = (tensor.reshape(-1) for tensor in tensors)
        for large, group in groupby(flat, key=lambda tensor: tensor.numel() >= LARGE):
            neighbours = list(group)
            parts += neighbours if large else [torch.cat(neighbours)]
        return cls(tuple(parts))

    def numel(self) -> int:
        return sum(part.numel() for part in self.parts)

    def joined(self, out: Tensor | None = None) -> Tensor:
        """As one tensor."""
        return torch.cat(self.parts, out=out)


def cut(vectors: Sequence[Tensor | Pieces]) -> Iterator[tuple[Tensor, ...]]:
    """Vectors of one length, cut where those in pieces are, the longest stretches first."""
    parts = next((vector.parts for vector in vectors if isinstance(vector, Pieces)), None)
    if parts is None:
        yield tuple(vectors)  # pyright: ignore[reportReturnType]
        return
    sizes = [part.numel() for part in parts]
    columns = [v.parts if isinstance(v, Pieces) else v.split(sizes) for v in vectors]
    assert all([part.numel() for part in column] == sizes for column in columns)
    stretches = list(zip(*columns, strict=True))
    yield from sorted(stretches, key=lambda stretch: stretch[0].numel(), reverse=True)
