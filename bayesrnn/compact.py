"""Small files for the weights of a pruned model: zeros are not stored, other weights as float32 or int8.

The file is safetensors; its metadata entry "bayesrnn" is JSON, whose "header" lists under "packed" the packed
tensors, and under "tied" the names of tied tensors. A packed tensor "w" is stored as

    w.shape   int64      its shape
    w.mask    uint8      one bit per weight, row by row, highest bit first: 1 where the weight is not zero
    w.values  float32    the weights that are not zero, in that order
              or int8    the same, divided by their row's scale and rounded
    w.scale   float32    int8 only: one per row, its largest |weight| / 127

and every other tensor under its own name. Reading needs no posterior:
`model.load_state_dict(read_state(path))`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bayesrnn.storage import check_header, load_tensors, save_tensors

FORMAT = "bayesrnn-compact-1"
Storage = Literal["sparse", "int8"]
_SCHEMA = {"packed": list, "tied": dict}


def write_state(
    path: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    storage: Storage = "sparse",
    header: Mapping[str, Any] | None = None,
) -> None:
    """Write a model's `state_dict` to one small file; "sparse" is exact, "int8" is quantised.

    With int8 the error of a weight is at most the largest |weight| of its row / 254.
    """
    if storage not in get_args(Storage):
        raise ValueError(f"storage = {storage!r}; use {' or '.join(get_args(Storage))}.")
    tensors: dict[str, Tensor] = {}
    packed, tied, first = [], {}, {}
    for name, tensor in state.items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and first.setdefault(memory, name) != name:
            tied[name] = first[memory]
            continue
        parts = _encode(name, tensor.detach().cpu(), storage)
        if name not in parts:
            packed.append(name)
        tensors |= parts
    own = {"format": FORMAT, "storage": storage, "packed": packed, "tied": tied}
    save_tensors(path, tensors, {**(header or {}), **own})


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The dense `state_dict` from a file written by `write_state`."""
    return read_with_header(path)[0]


def read_with_header(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The dense `state_dict` and the file's header."""
    tensors, header = load_tensors(path)
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')!r}, not {FORMAT!r}: it is not an exported model, "
            "or one of another version."
        )
    check_header(header, _SCHEMA, str(path))
    names = header["packed"]
    parts = {f"{name}.{part}" for name in names for part in ("shape", "mask", "values", "scale")}
    state = {name: tensor for name, tensor in tensors.items() if name not in parts}
    for name in names:
        _check_parts(name, tensors, str(path))
    state |= {name: _decode(name, tensors) for name in names}
    for name, other in header["tied"].items():
        if not isinstance(other, str) or other not in state:
            raise ValueError(f"{path} is damaged: {name!r} is tied to {other!r}, which it lacks.")
    return state | {name: state[other] for name, other in header["tied"].items()}, header


def _encode(name: str, tensor: Tensor, storage: Storage) -> dict[str, Tensor]:
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return {name: tensor}
    mask = tensor != 0
    if storage == "sparse" and mask.all():
        return {name: tensor}
    rows = tensor.float().flatten(1)
    parts = {
        "shape": torch.tensor(tensor.shape),
        "mask": torch.from_numpy(np.packbits(mask.numpy())),
    }
    if storage == "int8":
        scale = rows.abs().amax(1) / 127
        steps = (rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round()
        parts |= {"values": steps.view(tensor.shape)[mask].to(torch.int8), "scale": scale}
    else:
        parts["values"] = tensor[mask]
    return {f"{name}.{part}": value for part, value in parts.items()}


def _check_parts(name: str, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError unless the parts of a packed tensor fit together; nothing is allocated before."""

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"{source} is damaged: {what} of {name!r} does not fit the rest.")

    shape, mask, values = (tensors.get(f"{name}.{part}") for part in ("shape", "mask", "values"))
    need(shape is not None and shape.dtype == torch.int64 and shape.dim() == 1, "shape")
    need(mask is not None and mask.dtype == torch.uint8 and mask.dim() == 1, "mask")
    need(values is not None and values.dim() == 1, "values")
    assert shape is not None
    assert mask is not None
    assert values is not None
    sizes, bits = shape.tolist(), 8 * mask.numel()
    need(len(sizes) >= 2 and all(0 <= size <= max(bits, 2**31) for size in sizes), "shape")
    need(prod(sizes) <= bits < prod(sizes) + 8, "mask")
    ones = int(np.unpackbits(mask.numpy(), count=prod(sizes)).sum(dtype=np.int64))
    need(ones == values.numel(), "values")
    scale = tensors.get(f"{name}.scale")
    if scale is None:
        need(values.is_floating_point(), "values")
    else:
        need(values.dtype == torch.int8, "values")
        need(scale.is_floating_point() and scale.shape == (sizes[0],), "scale")


def _decode(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    shape = tuple(tensors[f"{name}.shape"].tolist())
    values, scale = tensors[f"{name}.values"], tensors.get(f"{name}.scale")
    bits = np.unpackbits(tensors[f"{name}.mask"].numpy(), count=int(np.prod(shape)))
    dense = torch.zeros(shape, dtype=values.dtype if scale is None else torch.float32)
    dense[torch.from_numpy(bits).bool().view(shape)] = values.to(dense.dtype)
    return dense if scale is None else (dense.flatten(1) * scale[:, None]).view(shape)
