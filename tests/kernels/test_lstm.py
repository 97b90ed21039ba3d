"""The LSTM for training in bf16: its equations, its derivatives, and when it takes the place of torch's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode

from bayesrnn.kernels import lstm as own
from bayesrnn.kernels.precision import multiplying_in

CPU = torch.device("cpu")


def _inputs(steps: int = 4, streams: int = 3, below: int = 5, units: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(steps, streams, below), (4 * units, below), (4 * units, units), (4 * units,)]
    shapes += [(streams, units), (streams, units)]
    return [
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in shapes
    ]


def test_a_layer_is_that_of_torch():
    x, w_ih, w_hh, b, h, c = _inputs()
    lstm = nn.LSTM(5, 2).double()
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(w_ih)
        lstm.weight_hh_l0.copy_(w_hh)
        lstm.bias_ih_l0.copy_(b)
        lstm.bias_hh_l0.zero_()
    output, (h_n, c_n) = lstm(x, (h[None], c[None]))
    for layer in (own.layer, own.FastLayer.apply):
        found = layer(x, w_ih, w_hh, b, h, c)
        for ours, theirs in zip(found, (output, h_n[0], c_n[0]), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_its_derivatives_are_those_of_its_equations():
    inputs = _inputs()
    assert torch.autograd.gradcheck(own.FastLayer.apply, inputs)
    assert torch.autograd.gradgradcheck(own.FastLayer.apply, inputs)


def test_its_gradient_follows_the_formula_for_each_output():
    """Gradients that come in through h of all time steps, the last h and the last c alone."""
    inputs = _inputs(steps=6, streams=2, below=3, units=4)
    for which in range(3):
        wanted = torch.autograd.grad(own.layer(*inputs)[which].square().sum(), inputs)
        found = torch.autograd.grad(own.FastLayer.apply(*inputs)[which].square().sum(), inputs)
        torch.testing.assert_close(found, wanted)


def _gradients(lstm: nn.LSTM, x: Tensor, precision: str) -> list[Tensor]:
    lstm.zero_grad()
    with multiplying_in(precision, CPU):
        output, (h, c) = lstm(x)
    (output.float().square().sum() + h.float().sum() + c.float().sum()).backward()
    return [p.grad.clone() for p in lstm.parameters() if p.grad is not None]


def test_a_wide_lstm_in_bf16_is_near_that_in_float32(monkeypatch):
    monkeypatch.setattr(own, "WIDE", 32)
    torch.manual_seed(0)
    lstm, x = nn.LSTM(24, 32, 2), torch.randn(7, 5, 24)
    calls = []
    computed = own.lstm
    monkeypatch.setattr(own, "lstm", lambda *args: calls.append(1) or computed(*args))
    found = _gradients(lstm, x, "bf16")
    assert calls == [1]
    for ours, exact in zip(found, _gradients(lstm, x, "float32"), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() < 0.02 * exact.norm()
    assert calls == [1]


def test_the_cell_is_carried_in_float32(monkeypatch):
    monkeypatch.setattr(own, "WIDE", 16)
    lstm, x = nn.LSTM(16, 16), torch.randn(3, 2, 16)
    with multiplying_in("bf16", CPU):
        _, state = lstm(x)
        output, (h, c) = lstm(x, state)
    assert (output.dtype, h.dtype, c.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)


def test_a_gradient_to_be_differentiated_counts_each_path_once():
    """The state may be made from the same x: its gradient is then for the rest of the graph to add."""
    x, w_ih, w_hh, b, *_ = _inputs(below=2)
    gradients = []
    for create_graph in (False, True):
        h, c = x[0].sin(), x[1].cos()
        output, *_ = own.FastLayer.apply(x, w_ih, w_hh, b, h, c)
        gradients += torch.autograd.grad(output.square().sum(), x, create_graph=create_graph)
    torch.testing.assert_close(*gradients)


def test_every_layer_has_its_own_state(monkeypatch):
    monkeypatch.setattr(own, "WIDE", 32)
    torch.manual_seed(0)
    lstm, x = nn.LSTM(24, 32, 3), torch.randn(2, 5, 24)
    state = tuple(torch.randn(3, 5, 32).requires_grad_() for _ in range(2))
    found = {}
    for precision in ("float32", "bf16"):
        with multiplying_in(precision, CPU):
            output, (h, c) = lstm(x, state)
        weights = torch.arange(1.0, 4.0).view(3, 1, 1)
        loss = output.float().sum() + (weights * h.float()).sum() + (weights * c.float()).sum()
        found[precision] = [output, *h, *c, *torch.autograd.grad(loss, state)]
    assert found["bf16"][0].dtype == torch.bfloat16
    for ours, exact in zip(found["bf16"], found["float32"], strict=True):
        assert (ours.float() - exact).norm() < 0.02 * exact.norm()


def test_dropout_between_layers(monkeypatch):
    monkeypatch.setattr(own, "WIDE", 16)
    lstm, x = nn.LSTM(16, 16, 2, dropout=0.5), torch.randn(3, 2, 16)
    torch.manual_seed(1)
    with multiplying_in("bf16", CPU):
        output, _ = lstm(x)
    first, second = nn.LSTM(16, 16), nn.LSTM(16, 16)
    for number, layer in enumerate((first, second)):
        for name, weight in layer.named_parameters():
            weight.data = getattr(lstm, name.replace("l0", f"l{number}")).data
    torch.manual_seed(1)
    with multiplying_in("bf16", CPU):
        wanted, _ = second(F.dropout(first(x)[0], 0.5))
    assert torch.equal(output, wanted)
    lstm.eval()
    with multiplying_in("bf16", CPU):
        assert torch.equal(lstm(x)[0], second(first(x)[0])[0])


OURS = ("wide", "narrow, and torch has none")


class _LeftToTorch(Exception):
    pass


class _Torch(TorchFunctionMode):
    """Stands where torch's own kernel would be called: some processors have none in bf16."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm:
            raise _LeftToTorch
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("wide", {}),
        ("narrow", {}),
        ("narrow, and torch has none", {}),
        ("float32", {}),
        ("float64 weights", {"dtype": torch.float64}),
        ("not trained", {}),
        ("packed", {}),
        ("batch_first", {"batch_first": True}),
        ("bidirectional", {"bidirectional": True}),
        ("without biases", {"bias": False}),
        ("projected", {"proj_size": 8}),
    ],
)
def test_what_it_does_not_compute_is_left_to_torch(monkeypatch, case, options):
    monkeypatch.setattr(own, "WIDE", 17 if case.startswith("narrow") else 16)
    monkeypatch.setattr(own, "torch_computes_bf16", lambda: "torch has none" not in case)
    lstm, x = nn.LSTM(16, 16, **options), torch.randn(3, 3, 16, dtype=options.get("dtype"))
    given = pack_sequence([x[0], x[1]]) if case == "packed" else x
    with (
        nullcontext() if case in OURS else pytest.raises(_LeftToTorch),
        torch.no_grad() if case == "not trained" else nullcontext(),
        _Torch(),
        multiplying_in("float32" if case == "float32" else "bf16", CPU),
    ):
        lstm(given)


def test_a_narrow_lstm_trains_in_bf16_on_every_processor():
    gradients = _gradients(nn.LSTM(4, 4), torch.randn(3, 2, 4), "bf16")
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_torch_cannot_if_it_fails(monkeypatch):
    def fails(*args):
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(torch, "lstm", fails)
    assert not own.torch_computes_bf16.__wrapped__()
