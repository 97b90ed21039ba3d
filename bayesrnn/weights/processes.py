"""Several processes: their gradients averaged by DistributedDataParallel, or by `average_grads`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn

from bayesrnn import torch_private

_wrapped = True


def in_group() -> bool:
    """Whether this is a process of a torch.distributed group, perhaps the only one."""
    return distributed.is_available() and distributed.is_initialized()


@contextmanager
def unwrapped() -> Iterator[None]:
    """Inside the block no DistributedDataParallel waits for gradients: they need not go through autograd."""
    global _wrapped
    before, _wrapped = _wrapped, False
    try:
        yield
    finally:
        _wrapped = before


def may_be_wrapped() -> bool:
    """Whether a DistributedDataParallel may be around the model, whose hooks only autograd calls."""
    return _wrapped and in_group()


def are_several() -> bool:
    """Whether this is one of several processes of a torch.distributed group."""
    return in_group() and distributed.get_world_size() > 1


@contextmanager
def checking_wrapper(model: nn.Module, kinds: Collection[str]) -> Iterator[None]:
    """Inside the block, raise if the model is called by a DistributedDataParallel that would go wrong."""
    if not may_be_wrapped():
        yield
        return
    hook = model.register_forward_pre_hook(lambda *_: _check_wrapper(kinds))
    try:
        yield
    finally:
        hook.remove()


def _check_wrapper(kinds: Collection[str]) -> None:
    wrapper = torch_private.calling_ddp()
    if wrapper is None:
        return
    # The gradients of mu and rho come after backward has ended: they must be waited for.
    for setting in ("find_unused_parameters", "static_graph"):
        if getattr(wrapper, setting):
            raise ValueError(
                f"DistributedDataParallel({setting}=True) would leave out the gradients of mu and rho; set "
                "it to False."
            )
    if "kappa" in kinds:
        raise ValueError(
            "sharpening runs the model twice a step, which DistributedDataParallel cannot follow: call the "
            "model itself in the closure, then posterior.all_reduce_grads() before the step."
        )


@torch.no_grad()
def average_grads(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes; a process without one counts as 0."""
    if not are_several():
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()


@torch.no_grad()
def check_equal(**vectors: Tensor) -> None:
    """Raise on every process unless all have the same vectors."""
    if not are_several():
        return
    sums = torch.stack([_fingerprint(vector) for vector in vectors.values()])
    low, high = sums.clone(), sums.clone()
    distributed.all_reduce(low, distributed.ReduceOp.MIN)
    distributed.all_reduce(high, distributed.ReduceOp.MAX)
    for name, equal in zip(vectors, (low == high).all(-1).tolist(), strict=True):
        if not equal:
            raise ValueError(
                f"the processes have different {name}, so their gradients do not belong together. Start them "
                "with the same weights: the same seed before the model is made, or one file that all load."
            )


def _fingerprint(vector: Tensor) -> Tensor:
    """Two sums that differ wherever the vectors do, as good as certainly.

    Of whole numbers, the vector's bits, so that they do not depend on the order of adding.
    """
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[vector.element_size()]
    bits = vector.detach().contiguous().view(kind).long()
    return torch.stack([bits.sum(), bits.square().sum()])
