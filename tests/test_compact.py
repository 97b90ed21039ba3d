"""Small files for plain weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from bayesrnn.compact import read_state, read_with_header, write_state
from bayesrnn.storage import save_tensors


def _state(drop: float = 0.8) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    model = nn.LSTM(20, 30, 2)
    state = model.state_dict()
    for tensor in state.values():
        if tensor.dim() == 2:
            tensor.mul_(torch.rand_like(tensor) > drop)
    return state


@pytest.mark.parametrize("drop", [0.0, 0.8, 1.0])
def test_sparse_storage_is_exact(drop, tmp_path):
    state, path = _state(drop), tmp_path / "model.safetensors"
    write_state(path, state, "sparse", {"note": 3})
    read, header = read_with_header(path)
    assert header["note"] == 3
    assert read.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(read[name], tensor)
        assert read[name].dtype == tensor.dtype


def test_int8_is_within_half_a_step(tmp_path):
    state, path = _state(), tmp_path / "model.safetensors"
    write_state(path, state, "int8")
    read = read_state(path)
    assert read.keys() == state.keys()
    furthest = 0.0
    for name, tensor in state.items():
        if tensor.dim() < 2:
            assert torch.equal(read[name], tensor)
            continue
        step = tensor.abs().amax(1, keepdim=True) / 127
        off = (read[name] - tensor).abs() / step.clamp_min(1e-12)
        furthest = max(furthest, off.max().item())
        assert ((read[name] == 0) | (tensor != 0)).all()  # what was dropped stays dropped
    assert 0.4 < furthest <= 0.5 + 1e-4


def test_it_is_small(tmp_path):
    state = {"w": torch.randn(500, 500) * (torch.rand(500, 500) > 0.9)}
    kept = int((state["w"] != 0).sum())
    sizes = {}
    for storage, each in [("sparse", 4), ("int8", 1)]:
        path = tmp_path / f"{storage}.safetensors"
        write_state(path, state, storage)
        sizes[storage] = path.stat().st_size
        extra = 500 * 4 if storage == "int8" else 0
        assert sizes[storage] < each * kept + 500 * 500 / 8 + extra + 1500
    assert sizes["sparse"] < 0.15 * 500 * 500 * 4


def test_a_plain_module_reads_it_with_nothing_of_ours(tmp_path):
    """The format as the module's docstring tells it, by safetensors and numpy alone."""
    state, path = _state(), tmp_path / "model.safetensors"
    write_state(path, state, "int8")
    decoded = {}
    with safe_open(path, "np") as file:
        names = set(file.keys())
        for name in names:
            if name.endswith(".shape"):
                base = name.removesuffix(".shape")
                shape = file.get_tensor(name)
                bits = np.unpackbits(file.get_tensor(f"{base}.mask"), count=int(shape.prod()))
                dense = np.zeros(int(shape.prod()), np.float32)
                dense[bits == 1] = file.get_tensor(f"{base}.values")
                rows = dense.reshape(shape) * file.get_tensor(f"{base}.scale")[:, None]
                decoded[base] = torch.from_numpy(rows)
            elif not name.endswith((".mask", ".values", ".scale")):
                decoded[name] = torch.from_numpy(file.get_tensor(name))
    model = nn.LSTM(20, 30, 2)
    model.load_state_dict(decoded)
    ours = read_state(path)
    assert all(torch.equal(tensor, ours[name]) for name, tensor in model.state_dict().items())


def test_convolutions_too(tmp_path):
    state = nn.Conv2d(3, 4, 5).state_dict()
    state["weight"][:, :, 0] = 0
    for storage in ("sparse", "int8"):
        write_state(tmp_path / "c.safetensors", state, storage)
        torch.testing.assert_close(
            read_state(tmp_path / "c.safetensors"), dict(state), rtol=0, atol=0.001
        )


def test_tied_weights_are_stored_once_and_names_may_be_odd(tmp_path):
    path = tmp_path / "m.safetensors"
    weight = torch.randn(100, 100)
    write_state(path, {"a": weight, "b": weight, "dist.shape": torch.ones(3)})
    assert path.stat().st_size < 1.1 * 4 * weight.numel()
    read = read_state(path)
    assert torch.equal(read["a"], weight)
    assert read["b"] is read["a"]
    assert torch.equal(read["dist.shape"], torch.ones(3))


def test_wrong_files(tmp_path):
    path = tmp_path / "other.safetensors"
    save_tensors(path, {"w": torch.zeros(2)}, {"format": "something else"})
    with pytest.raises(ValueError, match="not an exported model"):
        read_state(path)
    with pytest.raises(ValueError, match="storage = 'zip'"):
        write_state(path, {}, "zip")  # pyright: ignore[reportArgumentType]
