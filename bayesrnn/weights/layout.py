"""Which stretch of the flat vector belongs to which named weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torch import Tensor

Kind = Literal["recurrent", "embedding", "other"]


@dataclass(frozen=True)
class Slot:
    """One named weight tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    kind: Kind = "other"
    fixed_row: int | None = None
    """A row of an embedding that is never sampled nor trained (its `padding_idx`)."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)

    @property
    def fixed_span(self) -> slice | None:
        if self.fixed_row is None:
            return None
        width = self.size // self.shape[0]
        start = self.offset + self.fixed_row * width
        return slice(start, start + width)


@dataclass(frozen=True)
class Layout:
    """The slots of a flat vector, in order and without gaps."""

    slots: tuple[Slot, ...]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    @cached_property
    def sizes(self) -> list[int]:
        return [slot.size for slot in self.slots]

    @property
    def size(self) -> int:
        """d, the length of every flat vector."""
        return sum(self.sizes)

    @cached_property
    def fixed(self) -> tuple[slice, ...]:
        """The stretches that hold padding: no noise, no gradient, no KL."""
        return tuple(slot.fixed_span for slot in self.slots if slot.fixed_span is not None)

    def part(self, slots: Sequence[Slot]) -> Layout:
        """The layout of some neighbouring slots, for a vector of these alone."""
        start = slots[0].offset
        return Layout(tuple(replace(slot, offset=slot.offset - start) for slot in slots))

    def split(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as views in the weights' shapes, in order."""
        parts = zip(vector.split(self.sizes), self.slots, strict=True)
        return [part.view(slot.shape) for part, slot in parts]

    def fill_fixed(self, vector: Tensor, value: float = 0.0) -> Tensor:
        """Set the padding rows of a flat vector, in place."""
        for span in self.fixed:
            vector[span] = value
        return vector
