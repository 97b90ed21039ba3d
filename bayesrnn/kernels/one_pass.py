"""Elementwise functions of flat vectors, run in one pass over memory.

Written with torch operations, a formula makes one pass over memory for each of them, and a vector of
20 million weights fits no cache. So an in-place function marked with `one_pass` is compiled
(torch.compile) for long vectors, or, where there is no C++ compiler, run stretch by stretch. The
function as it is written stays the definition of what is computed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from threading import Lock
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesrnn import torch_private
from bayesrnn.warn import warn

EXAMPLE = 1 << 18
"""Weights of the vectors with which code for any length is compiled: enough to be worth two threads."""
LONG = 250_000
"""Weights from which on compiling pays; it takes some ten seconds, the first time on a machine."""
STRETCH = 1 << 16
"""Weights of a stretch: what a formula needs of them at once fits a second-level cache."""

F = TypeVar("F", bound=Callable[..., Any])

enabled = os.environ.get("BAYESRNN_COMPILE", "1") != "0"
"""Whether to compile at all."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside the block nothing is compiled: for work that takes less time than compiling."""
    global enabled
    before, enabled = enabled, False
    try:
        yield
    finally:
        enabled = before


class OnePass:
    """Calls `function(*vectors, **settings)`, vectors all of one length and each element on its own.

    A setting called `start` is the index of the first element. Settings are constants to the
    compiler, but for tensors: a number that changes from call to call should be a 0-dimensional one. A sum
    over the elements, to which a function may add, is a vector of one: what is added to a 0-dimensional
    tensor of float64 the compiler drops.
    """

    def __init__(self, function: Callable[..., None], *, pairs: bool = False) -> None:
        self.function = function
        self.pairs = pairs
        self._compiled: dict[Hashable, Callable[..., None] | None] = {}
        update_wrapper(self, function)

    @torch.no_grad()
    def __call__(self, *vectors: Tensor, **settings: Any) -> None:
        flat = [vector.detach() for vector in vectors]  # the compiler looks at what a view is of
        size, device = flat[0].numel(), flat[0].device.type
        long = size * (2 if self.pairs else 1) >= LONG
        # Code for any length is for any but 1.
        if enabled and long and device in ("cpu", "cuda") and (self.for_one_length or size > 1):
            key = self._key(flat[0], settings)
            if key is not None and key not in self._compiled:
                self._compiled[key] = self._compile(flat, settings)
                if self.for_one_length and self._compiled[key] is not None:
                    return  # it has run
            function = None if key is None else self._compiled[key]
            if function is not None:
                function(*flat, **settings)
                return
        if device != "cpu" or size <= STRETCH:
            self.function(*flat, **settings)
            return
        first = settings.get("start")
        for start in range(0, size, STRETCH):
            if first is not None:
                settings = {**settings, "start": first + start}
            self.function(*(v[start : start + STRETCH] for v in flat), **settings)

    @property
    def for_one_length(self) -> bool:
        """Passes over pairs count places, with which code for any length is up to twice as slow."""
        return self.pairs

    def _compile(
        self, vectors: list[Tensor], settings: dict[str, Any]
    ) -> Callable[..., None] | None:
        """The function compiled, or a warning and None.

        To be compiled it must run: for one length with these vectors, for any length with copies, since
        with stretches of longer vectors the code would be for such stretches alone.
        """
        global enabled
        if not self.for_one_length:
            with torch.inference_mode(False):  # which its tensors would be tied to
                vectors = [vector[:EXAMPLE].clone() for vector in vectors]
        # The compiler counts what it makes of one piece of code, and stops at eight: so each its own.
        code = self.function.__code__.replace()
        own = FunctionType(code, self.function.__globals__, self.function.__name__)
        own.__kwdefaults__ = self.function.__kwdefaults__
        with _compiling, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about its own insides
            try:
                for function in _constants:
                    torch.compiler.assume_constant_result(function)
                compiled = torch.compile(own, dynamic=not self.for_one_length, fullgraph=True)
                with torch_private.compiler_settings():
                    compiled(*vectors, **settings)
                return compiled
            except Exception as error:
                failure = error
        if torch_private.is_of_the_machine(failure):
            enabled = False
        reason = str(getattr(failure, "inner_exception", failure)).strip().splitlines()[0][:200]
        name = self.function.__name__.strip("_")
        warn(
            f"torch.compile does not work here for {name}, so training will be slower, "
            f"with the same results: {reason} (BAYESRNN_COMPILE=0 silences this)"
        )
        return None

    def _key(self, vector: Tensor, settings: Mapping[str, Any]) -> Hashable | None:
        """All that a compiled function depends on; None if that cannot be told, and it is not compiled."""
        constants = tuple(
            (name, value if isinstance(value, int | float) else _as_key(value))
            for name, value in sorted(settings.items())
            if not isinstance(value, Tensor)
        )
        size, device = vector.numel() if self.for_one_length else None, vector.device.type
        key = (constants, size, vector.dtype, device, _compiler_state(device))
        try:
            hash(key)
        except TypeError:
            return None
        return key


def _as_key(value: Any) -> Any:
    """A setting as a key: itself, or if it can change, as an ordinary dataclass can, its present values."""
    try:
        hash(value)
    except TypeError:
        return type(value), tuple(sorted(getattr(value, "__dict__", {}).items())) or None
    return value


def one_pass(*, pairs: bool = False) -> Callable[[Callable[..., None]], OnePass]:
    """Mark an in-place, elementwise function of flat vectors; with `pairs` they are halves of longer ones."""
    return lambda function: OnePass(function, pairs=pairs)


def constant(function: F) -> F:
    """Mark a function of constants that the compiler shall call instead of looking inside.

    Torch's own mark, which it gets before anything is compiled, would load the compiler at once: a second.
    """
    _constants.append(function)
    return function


_constants: list[Callable[..., Any]] = []
_compiling = Lock()


def _compiler_state(device: str) -> tuple[Any, ...]:
    """What else of torch's global state compiled code depends on.

    The compiler guards its code by these, and compiles anew by itself, without our settings, when one of
    them changes; so whoever keeps compiled code has to keep one for each.
    """
    return (
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
