"""Elementwise functions of flat vectors, run in one pass over memory.

Written with torch operations, a formula makes one pass over memory for each of them, and a vector of
20 million weights fits no cache. So an in-place function marked with `one_pass` is compiled
(torch.compile) for long vectors, or, where there is no C++ compiler, run stretch by stretch. The
function as it is written stays the definition of what is computed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor

LONG = 1_000_000
"""Weights from which on compiling pays; it takes some ten seconds, the first time on a machine."""
STRETCH = 1 << 16
"""Weights of a stretch: what a formula needs of them at once fits a second-level cache."""

enabled = os.environ.get("BAYESRNN_COMPILE", "1") != "0"
"""Whether to compile at all."""


class OnePass:
    """Calls `function(*vectors, **settings)`, vectors all of one length and each element on its own.

    A setting called `start` is the index of the first element. Numbers that change from call to
    call should come as 0-dimensional tensors: a compiled function is made anew for each new number.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self._compiled: Callable[..., None] | None = None
        update_wrapper(self, function)

    @torch.no_grad()
    def __call__(self, *vectors: Tensor, **settings: Any) -> None:
        size = vectors[0].numel()
        worth_it = enabled and size >= LONG and vectors[0].device.type in ("cpu", "cuda")
        if worth_it and self._run_compiled(*vectors, **settings):
            return
        if vectors[0].device.type != "cpu" or size <= STRETCH:
            self.function(*vectors, **settings)
            return
        first = settings.get("start")
        for start in range(0, size, STRETCH):
            if first is not None:
                settings["start"] = first + start
            self.function(*(v[start : start + STRETCH] for v in vectors), **settings)

    def _run_compiled(self, *vectors: Tensor, **settings: Any) -> bool:
        global enabled
        if self._compiled is None:
            self._compiled = torch.compile(self.function, dynamic=True, fullgraph=True)
        try:
            # Any length with one compilation, but a prior's numbers as constants.
            with torch._dynamo.config.patch(specialize_float=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about its own insides
                self._compiled(*vectors, **settings)
        except Exception as error:
            if not _is_of_the_compiler(error):
                raise
            enabled = False
            reason = str(getattr(error, "inner_exception", error)).strip().splitlines()[0][:200]
            warnings.warn(
                "torch.compile does not work here, so training will be slower, with the same "
                f"results: {reason} (BAYESRNN_COMPILE=0 silences this)",
                stacklevel=4,
            )
            return False
        return True


def one_pass(function: Callable[..., None]) -> OnePass:
    """Mark an in-place, elementwise function of flat vectors."""
    return OnePass(function)


def _is_of_the_compiler(error: Exception) -> bool:
    """Raised while compiling, hence before anything was computed."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
