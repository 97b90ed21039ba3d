"""Every private or undocumented part of torch that the package relies on, each with its reason.

tests/test_torch_private.py has a test for each, so that a new torch says which one broke.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn


def versions(*tensors: Tensor) -> tuple[int, ...]:
    """How often each tensor's memory was written to in place, through it or through any of its views.

    Autograd keeps this count to notice a change between forward and backward; it has no public name.
    """
    return tuple(tensor._version for tensor in tensors)


def has_hooks(parameter: Tensor) -> bool:
    """Whether anything is to be called with its gradient; torch can add such hooks, but not list them."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def calling_ddp() -> nn.parallel.DistributedDataParallel | None:
    """The DistributedDataParallel whose forward is running; torch keeps it for its compiler."""
    return nn.parallel.DistributedDataParallel._active_ddp_module


def module_inside(model: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, whose names do not begin with "_orig_mod."."""
    return getattr(model, "_orig_mod", model)


class Follower(Protocol):
    def follow(self, fn: Callable[[Tensor], Tensor], apply: Callable[[], None]) -> None:
        """Call `apply`, which moves or converts the model's tensors by fn, and do what else that needs."""
        ...


def after_apply(model: nn.Module, followers: Sequence[Follower]) -> None:
    """Have followers take part whenever the model's tensors are moved or converted: `.to()`, `.half()`, ...

    All of these go through the method `_apply`, which every module calls for its children. There is no hook
    for it, so this model gets a method of its own.
    """
    model._apply = _Following(model, followers)  # pyright: ignore[reportAttributeAccessIssue]


def forget_apply(model: nn.Module) -> None:
    """Undo `after_apply`."""
    model.__dict__.pop("_apply", None)


class _Following:
    """A model's `_apply`, as a value that can be copied and pickled with the model."""

    def __init__(self, model: nn.Module, followers: Sequence[Follower]) -> None:
        self.model, self.followers = model, followers

    def __call__(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def apply() -> None:
            type(self.model)._apply(self.model, fn, recurse)

        for follower in self.followers:
            apply = partial(follower.follow, fn, apply)
        apply()
        return self.model


def compiler_settings() -> AbstractContextManager[Any]:
    """The compiler's settings while one of our passes is compiled.

    - Numbers are constants: the compiler would otherwise make a tensor of a float that changes.
    - The C++ compiler may round a * b + c once: up to three times as fast. Nothing beyond that.
    - Vectors are of 512 bits where the processor has them. GCC prefers 256 on many of these, and then takes
      apart in memory each vector whose bits change their type: half the speed (docs/performance.md).
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    wanted: dict[str, Any] = {
        "enable_floating_point_contract_flag": "fast",
        "enable_unsafe_math_opt_flag": False,
    }
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    # None: neither the user nor TORCHINDUCTOR_CPP_MARCH has chosen an architecture.
    if avx512 and sys.platform == "linux" and getattr(inductor.cpp, "march", "") is None:
        # Torch has no setting for it, but cuts this one at spaces: a second option follows the first.
        wanted["march"] = "native -mprefer-vector-width=512"
    known = {f"cpp.{k}": v for k, v in wanted.items() if hasattr(inductor.cpp, k)}
    stack = ExitStack()
    stack.enter_context(dynamo.patch(specialize_float=True))
    stack.enter_context(inductor.patch(known))
    return stack


def is_of_the_machine(error: Exception) -> bool:
    """Whether a failure to compile means that nothing at all will: no compiler, or an unsupported Python.

    Errors about the code itself come from torch._dynamo; those of the compiler behind it have the error
    they wrap in `inner_exception`.
    """
    of_the_code = type(error).__module__.startswith("torch._dynamo")
    return not of_the_code or hasattr(error, "inner_exception")
