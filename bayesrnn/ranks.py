"""The processes that torchrun started: who they are, what they agree on, and how they divide work.

They are called ranks, and numbered from 0. Without torchrun there is one, and nothing here does anything.
Nothing that is sent between them is pickled: tensors, and text as bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, distributed

from bayesrnn.shared_sum import SharedSum, make_file

T = TypeVar("T")

LEAST_SHARED = 1_000_000
"""Bytes of a vector from which on it is added up through shared memory."""

SECONDS_TO_GATHER = 2.0
"""How long ranks that have lost another wait for each other, to know which it is."""

SECONDS_BETWEEN_SIGNS = 1.0
"""How often, at the most, a rank tells the others how far it is."""


class Elsewhere(RuntimeError):
    """Another rank has failed, and says why."""


class Lost(RuntimeError):
    """Another rank ended or stopped answering."""


@dataclass
class _Group:
    store: Any
    rank: int
    world: int
    seconds: float
    last_sign: float = 0.0
    on_one_machine: bool = False
    shared: SharedSum | None = None
    """Made for the first vector that is worth it."""


_group: _Group | None = None


def expected() -> bool:
    """Whether this process is one of several that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(seconds: float) -> Iterator[None]:
    """Inside the block this process is one of its group, which no rank may keep waiting for longer than that.

    By gloo on CPUs and nccl on GPUs. ValueError if the others cannot be reached.
    """
    global _group
    if not expected():
        yield
        return
    if not distributed.is_available():
        raise ValueError(
            "this torch has no torch.distributed; start one process, without torchrun."
        )
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=seconds)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, world = next(rendezvous("env://", timeout=timeout))
        # torchrun keeps its store when it restarts the ranks: what those before have left is not for these.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"bayesrnn-{attempt}", store)
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timeout
        )
    except (ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0][:300]
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise ValueError(
            f"cannot meet the other processes at {where} ({said}); start all of them with torchrun."
        ) from None
    local = os.environ.get("LOCAL_WORLD_SIZE") == str(world)
    _group = _Group(store, rank, world, seconds, on_one_machine=local)
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, Elsewhere | Lost) or not _is_of_the_network(error):
            raise
        raise _lost(error) from None
    finally:
        _group = None
        distributed.destroy_process_group()


def rank() -> int:
    return _group.rank if _group else 0


def world() -> int:
    """The number of ranks."""
    return _group.world if _group else 1


def is_first() -> bool:
    """Whether this is the rank that writes files and talks to the user."""
    return rank() == 0


# ---------------------------------------------------------------------- agreeing


def agree(work: Callable[[], T]) -> T:
    """What the function returns; if it raises ValueError or OSError on some rank, all of them end.

    The first of those raises its error, the others `Elsewhere`.
    """
    problem: Exception | None = None
    result: Any = None
    try:
        result = work()
    except (ValueError, OSError) as error:
        problem = error
    if world() == 1:
        if problem is not None:
            raise problem
        return result
    failed = gather(torch.tensor([problem is not None])).tolist()
    if any(failed):
        if problem is not None and failed.index(True) == rank():
            raise problem
        raise Elsewhere
    return result


def check_same(values: Mapping[str, Any], what: str) -> None:
    """Raise ValueError unless all ranks have the same values; it names the first that differs."""
    if world() == 1:
        return
    texts = [f"{name} = {value!r}" for name, value in values.items()]
    others = [text.split("\n") for text in gather_text("\n".join(texts))]
    for number, theirs in enumerate(others):
        for ours, other in zip(others[0], theirs, strict=False):
            if ours != other:
                raise ValueError(
                    f"the ranks have different {what}: {ours} on rank 0, {other} on rank {number}."
                )


def first_to_fail() -> bool:
    """Whether this rank is the first that says it failed: the one to tell the user."""
    if _group is None:
        # Before they have met, ranks fail alike: one on each machine says so.
        return os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        return _group.store.add("bayesrnn/failures", 1) == 1
    except RuntimeError:  # the store has gone with the rank that kept it
        return is_first()


def sign_of_life(step: int) -> None:
    """Tell the others how far this rank is, now and then, so that one that hangs can be named."""
    if _group is None or time.monotonic() - _group.last_sign < SECONDS_BETWEEN_SIGNS:
        return
    _group.last_sign = time.monotonic()
    _group.store.set(f"bayesrnn/step-{_group.rank}", str(step))


def _lost(error: RuntimeError) -> Lost:
    """What to say when a rank has gone or hangs: all that are left come here, so it is one that does not."""
    assert _group is not None
    what = f"not answered for {_group.seconds:g} s" if _timed_out(error) else "ended"
    silent, steps = [], {}
    try:
        _group.store.set(f"bayesrnn/left-{_group.rank}", "1")
        time.sleep(SECONDS_TO_GATHER)
        for number in range(_group.world):
            if not _group.store.check([f"bayesrnn/left-{number}"]):
                silent.append(number)
                key = f"bayesrnn/step-{number}"
                steps[number] = int(_group.store.get(key)) if _group.store.check([key]) else None
    except RuntimeError:  # the store has gone with the rank that kept it
        silent = []
    names = [
        f"{number} (last seen at step {steps[number]:,})" if steps[number] else str(number)
        for number in silent
    ]
    if not names:  # all are there, or nobody can tell
        said = str(error).strip().splitlines()[0][:300]
        return Lost(f"the ranks have lost each other: {said}")
    who = f"rank {names[0]} has" if len(names) == 1 else f"ranks {', '.join(names)} have"
    return Lost(f"{who} {what}; a training goes on from its last checkpoint with --resume.")


def _is_of_the_network(error: RuntimeError) -> bool:
    kinds = (distributed.DistBackendError, distributed.DistNetworkError, distributed.DistStoreError)
    words = ("gloo", "Connection", "NCCL")  # gloo has no error of its own
    known = _timed_out(error) or any(word in str(error) for word in words)
    return (type(error) is RuntimeError and known) or isinstance(error, kinds)


def _timed_out(error: RuntimeError) -> bool:
    """By its words: gloo's "Timed out waiting ..." or "Application timeout caused pair closure"."""
    return any(word in str(error).lower() for word in ("timed out", "timeout"))


# ---------------------------------------------------------------------- exchanging


def sum_(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over the ranks, in place, the same to the last bit on all of them."""
    if world() == 1:
        return
    pending: list[Any] = []
    for tensor in tensors:
        shared = _shared_sum(tensor)
        if shared is not None:
            shared.sum_(tensor)
        else:
            pending.append(distributed.all_reduce(tensor, async_op=True))
    for work in pending:
        work.wait()


def _shared_sum(tensor: Tensor) -> SharedSum | None:
    """Shared memory for a tensor's sum, where it pays: for long ones, between the ranks of one machine."""
    assert _group is not None
    size = tensor.numel() * tensor.element_size()
    if not (_group.on_one_machine and tensor.device.type == "cpu" and tensor.is_contiguous()):
        return None
    if size < LEAST_SHARED:
        return None
    if _group.shared is None or not _group.shared.fits(tensor):
        file = make_file((_group.world + 1) * size) if is_first() else None
        _, name = broadcast({}, str(file or ""))
        if not name:
            _group.on_one_machine = False
            return None
        _group.shared = SharedSum(_group.rank, _group.world, size, Path(name), distributed.barrier)
    return _group.shared


def gather(tensor: Tensor, dim: int = 0) -> Tensor:
    """The tensors of all ranks joined along an axis, in order; their sizes may differ along it."""
    if world() == 1:
        return tensor
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world())]
    distributed.all_gather(sizes, torch.tensor([tensor.shape[dim]]))
    lengths = [int(size) for size in sizes]
    first = tensor.movedim(dim, 0).contiguous()
    padded = first.new_zeros((max(lengths), *first.shape[1:]))
    padded[: len(first)] = first
    parts = [torch.empty_like(padded) for _ in range(world())]
    distributed.all_gather(parts, padded)
    whole = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return whole.movedim(0, dim)


def gather_text(text: str) -> list[str]:
    """The texts of all ranks, in order."""
    data = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
    sizes = gather(torch.tensor([len(data)])).tolist()
    return [bytes(part.tolist()).decode().rstrip("\0") for part in gather(data).split(sizes)]


def broadcast(tensors: Mapping[str, Tensor] | None, text: str) -> tuple[dict[str, Tensor], str]:
    """The first rank's tensors and text, on all ranks; the others give None and any text."""
    if world() == 1:
        assert tensors is not None
        return dict(tensors), text
    plain = {name: tensor.contiguous() for name, tensor in (tensors or {}).items()}
    data = broadcast_bytes(lambda: safetensors.torch.save(plain))
    said = broadcast_bytes(text.encode).decode()
    return safetensors.torch.load(data), said


def broadcast_bytes(make: Callable[[], bytes]) -> bytes:
    """What the function returns on the first rank, where alone it is called."""
    data = make() if is_first() else b""
    if world() == 1:
        return data
    size = torch.tensor([len(data)])
    distributed.broadcast(size, 0)
    if not size:
        return b""
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if is_first():
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    distributed.broadcast(buffer, 0)
    return buffer.numpy().tobytes()


# ---------------------------------------------------------------------- dividing


def share(size: int) -> slice:
    """This rank's part of `size` things in a row; parts differ by one at the most."""
    return slice(size * rank() // world(), size * (rank() + 1) // world())


def own(items: Sequence[T]) -> list[T]:
    """Every world-th item, from this rank's number on."""
    return list(items[rank() :: world()])
