"""The precision of matrix products in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from bayesrnn.kernels.lstm import WideLSTMs

DTYPES = {"float32": None, "bf16": torch.bfloat16}
"""The dtype of matrix products, by the name of the setting; None for that of the weights."""


@contextmanager
def multiplying_in(precision: str, device: torch.device) -> Iterator[None]:
    """Inside the block matrix products are computed in this precision (torch.autocast); weights stay."""
    dtype = DTYPES[precision]
    with ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(torch.autocast(device.type, dtype=dtype))
            if device.type == "cpu":
                stack.enter_context(WideLSTMs())
        yield
