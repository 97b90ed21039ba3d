"""Long vectors of the ranks of one machine, added up through memory that they share.

gloo sends them through a network connection even there, which copies each byte several times: for the 37 MB
of gradients of the small language model some 25 ms against 18, on two cores (docs/scaling.md).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path("/dev/shm")
"""A file system that is memory; without it nothing is shared."""


class SharedSum:
    """A row for each rank to write to, and one for the sum, in a file that all of them map.

    The file has no name any more once all have opened it: it ends with the ranks, however they end.
    """

    def __init__(
        self, rank: int, world: int, size: int, file: Path, wait: Callable[[], object]
    ) -> None:
        """`size` is in bytes; `wait` returns when every rank has called it."""
        self.rank, self.world, self.size, self.wait = rank, world, size, wait
        rows = torch.from_file(str(file), shared=True, size=(world + 1) * size, dtype=torch.uint8)
        self._rows = rows.view(world + 1, size)
        wait()
        if rank == 0:
            file.unlink()

    def fits(self, vector: Tensor) -> bool:
        return vector.numel() * vector.element_size() <= self.size

    @torch.no_grad()
    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous vector by its sum over the ranks, the same to the last bit on all of them."""
        flat = vector.view(-1)
        length = flat.numel() * flat.element_size()
        *rows, total = self._rows[:, :length].view(flat.dtype).unbind()
        rows[self.rank].copy_(flat)
        self.wait()
        # Each rank adds up its stretch. None writes to the sum before all have read the last one: they would
        # not be here.
        size = flat.numel()
        own = slice(size * self.rank // self.world, size * (self.rank + 1) // self.world)
        torch.add(rows[0][own], rows[1][own], out=total[own])
        for row in rows[2:]:
            total[own].add_(row[own])
        self.wait()
        flat.copy_(total)


def make_file(size: int) -> Path | None:
    """A file in memory of so many bytes; None where there is no room for it."""
    if not FOLDER.is_dir():
        return None
    file = None
    try:
        handle, name = tempfile.mkstemp(prefix="bayesrnn-", dir=FOLDER)
        file = Path(name)
        try:
            # Reserved now: a page that cannot be had later would end the process.
            os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)
    except (OSError, AttributeError):
        if file is not None:
            with suppress(OSError):
                file.unlink()
        return None
    return file
