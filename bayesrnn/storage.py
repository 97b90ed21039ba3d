"""Tensors and a JSON header in one safetensors file: written atomically, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bayesrnn.files import write_atomically


def save_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any],
    *,
    keep: Path | None = None,
) -> None:
    """Write `tensors` and a JSON `header` to `path`, atomically; `keep` is a name for what was there."""
    # Tied weights have several names; safetensors stores no aliases, so each name gets its own copy.
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    # One entry only: safetensors writes several in arbitrary order, and equal states should be equal files.
    metadata = {"bayesrnn": json.dumps({"header": header, "sha256": digest(plain, header)})}

    def write(temporary: str) -> None:
        try:
            safetensors.torch.save_file(plain, temporary, metadata)
        except safetensors.SafetensorError as error:  # raised when the disk is full
            raise OSError(str(error)) from None

    write_atomically(path, write, keep=keep)


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `save_tensors`; raise ValueError if any byte of it has changed."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"{path} is a folder; name a file." if path.is_dir() else f"{path}: no such file."
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError, RuntimeError, AttributeError) as error:
        if _is_of_torch_save(path):
            raise ValueError(
                f"{path} looks like a file of torch.save; use model.load_state_dict(torch.load(file))."
            ) from None
        said = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged or not a safetensors file ({said}).") from None
    if "bayesrnn" not in metadata:
        raise ValueError(f"{path} was not written by bayesrnn: it has no bayesrnn header.")
    try:
        description = json.loads(metadata["bayesrnn"])
        header, sha256 = description["header"], description["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        header = sha256 = None
    if not isinstance(header, dict) or digest(tensors, header) != sha256:
        raise ValueError(f"{path} is damaged: its checksum does not match. Restore it from a copy.")
    return tensors, header


def _is_of_torch_save(path: Path) -> bool:
    """Whether a file is a zip archive with a pickle, as torch.save writes it."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError):
        return False


def load_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a file written by `save_tensors`, without its tensors and so without its checksum."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["bayesrnn"])["header"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path} is damaged or was not written by bayesrnn.")
    return header


Schema = Mapping[str, type | tuple[type, ...]]
"""The types of a header's entries by name; a name that ends in "?" may be missing."""


def check_header(header: Mapping[str, Any], schema: Schema, source: str) -> None:
    """Raise ValueError unless a header has these entries, of these types, and numbers that are finite."""
    for entry, kind in schema.items():
        name = entry.removesuffix("?")
        if name not in header:
            if entry.endswith("?"):
                continue
            raise ValueError(f"{source} is damaged: its header has no {name!r}.")
        value = header[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise ValueError(f"{source} is damaged: {name!r} in its header must be {names}.")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ValueError(
                f"{source} is damaged: {name!r} in its header must be a list of names."
            )
        if isinstance(value, int | float) and not -1e300 < value < 1e300:
            raise ValueError(f"{source} is damaged: {name!r} in its header is {value}.")


def check_state(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError unless both have the same names, shapes and dtypes."""
    for name in expected:
        if name not in given:
            raise ValueError(
                f"{source} has no {name!r}: it belongs to another architecture or selection."
            )
        if given[name].dtype != expected[name].dtype:
            raise ValueError(
                f"{source}: {name!r} is {given[name].dtype}, the model has {expected[name].dtype}. "
                "Convert the model before loading, with model.to(dtype)."
            )
        if given[name].shape != expected[name].shape:
            raise ValueError(
                f"{source}: {name!r} has shape {tuple(given[name].shape)}, the model needs "
                f"{tuple(expected[name].shape)}. Build the model with the sizes it was saved with."
            )
    for name in given:
        if name not in expected:
            raise ValueError(f"{source} has {name!r}, which this model does not have.")


@torch.no_grad()
def copy_state(
    current: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str = "the state"
) -> None:
    """Copy `given` into the tensors of `current`; on a mismatch nothing is copied."""
    check_state(current, given, source)
    for name, tensor in current.items():
        tensor.copy_(given[name])


def digest(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    """SHA-256 of named tensors and a header."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
