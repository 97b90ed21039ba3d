"""Where tensors live: the device of this process, and the random generators of a device.

`use` is for a program to call, once: the commands do. The library itself works wherever a model lies.
"""

from __future__ import annotations

import hashlib
import os

import torch
from torch import Generator, Tensor, nn

AUTO = "auto"
CPU = torch.device("cpu")
KINDS = ("cpu", "cuda", "mps")

_current = CPU


def use(name: str = AUTO) -> torch.device:
    """Have the commands of this process build their models on a device: by its name, or the best there is."""
    global _current
    _current = find_device(name)
    if _current.type == "cuda":
        torch.cuda.set_device(_current)
    return _current


def current() -> torch.device:
    """The device that `use` chose; the CPU before it was called."""
    return _current


def find_device(name: str = AUTO) -> torch.device:
    """A device by name: cpu, cuda, cuda:1 or mps; auto for the best there is. ValueError if it is not there.

    Under torchrun, cuda without a number is the one with the number of this process on its machine.
    """
    if name == AUTO:
        mps = _has_mps() and not _is_one_of_several()
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in KINDS:
        raise ValueError(
            f"--device {name}: unknown; choose cpu, cuda, cuda:1 and so on, mps or auto."
        )
    if device.type == "mps" and not _has_mps():
        raise ValueError(f"--device {name}: this machine has no such device; use --device cpu.")
    if device.type == "mps" and _is_one_of_several():
        raise ValueError(f"--device {name}: torchrun needs cpu or cuda.")
    if device.type == "cuda":
        return _cuda(name, device.index)
    if device.index:
        raise ValueError(
            f"--device {name}: there is one {device.type}; use --device {device.type}."
        )
    return torch.device(device.type)


def device_of(model: nn.Module) -> torch.device:
    """Where a model's weights are."""
    return next(model.parameters()).device


def generator_on(device: torch.device, seed: int) -> Generator:
    return Generator(device).manual_seed(seed)


def seed_from(*parts: object) -> int:
    """A seed that depends on all of these, and on nothing else."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def rng_state(device: torch.device) -> Tensor:
    """The state of a device's global random generator, which dropout draws from."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_rng_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def in_float32(logits: Tensor) -> Tensor:
    """Logits in float32 at least: in bf16 a loss, or a probability, would have three digits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _cuda(name: str, index: int | None) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    by_rank = index is None
    if index is None:
        index = int(os.environ.get("LOCAL_RANK", "0"))
    if count == 0:
        raise ValueError(
            f"--device {name}: torch {torch.__version__} finds no CUDA device here; use --device cpu."
        )
    if index >= count and by_rank:
        raise ValueError(
            f"--device {name}: this machine has {count}, fewer than ranks; lower --nproc-per-node."
        )
    if index >= count:
        raise ValueError(f"--device {name}: this machine has {count}, cuda:0 to cuda:{count - 1}.")
    return torch.device("cuda", index)


def _is_one_of_several() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _has_mps() -> bool:
    return torch.backends.mps.is_available()
