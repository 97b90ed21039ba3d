"""nn.LSTM in bf16 on a CPU, with a gradient in half the time of torch's and a little more accurate.

torch's kernel adds up the weights' gradient time step by time step. Here the gates' gradients of all time
steps are kept, and one matrix product gives the weights'. Products and h are in bf16, gates and cells in
float32. `layer` is the definition of what is computed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

WIDE = 600
"""Units from which on this is faster than torch's kernel; with fewer, the many small steps cost more. On
processors for which torch has no kernel in bf16, this computes LSTMs of any width."""

State = tuple[Tensor, Tensor]


def layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer: x (T, N, I) -> h of every time step (T, N, H), and the last h and c (N, H).

    i, f, g, o = x_t w_ih' + h w_hh' + b
    c = sigmoid(f) c + sigmoid(i) tanh(g)
    h = sigmoid(o) tanh(c)
    """
    outputs = []
    for x_t in x:
        i, f, g, o = (F.linear(x_t, w_ih, b) + F.linear(h, w_hh)).to(c.dtype).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()).to(x.dtype)
        outputs.append(h)
    return torch.stack(outputs), h, c


class FastLayer(torch.autograd.Function):
    """`layer`, with its gradient."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, h_0: Tensor, c_0: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (steps, streams, _), units = x.shape, w_hh.shape[1]
        from_below = F.linear(x, w_ih, b)  # (T, N, 4 H)
        gates = c_0.new_empty(steps, streams, 4 * units)
        h = x.new_empty(1 + steps, streams, units)
        c, tanh_c = c_0.new_empty(h.shape), c_0.new_empty(steps, streams, units)
        h[0], c[0] = h_0, c_0
        for t in range(steps):
            gates[t] = from_below[t].addmm_(h[t], w_hh.T)
            i_f, g, o = gates[t].split([2 * units, units, units], dim=-1)
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            i, f = i_f.chunk(2, dim=-1)
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
            torch.tanh(c[t + 1], out=tanh_c[t])
            h[t + 1] = o * tanh_c[t]
        ctx.save_for_backward(x, w_ih, w_hh, b, h_0, c_0, gates, h, c, tanh_c)
        return h[1:], h[-1].clone(), c[-1].clone()

    @staticmethod
    def backward(ctx: Any, *g_outputs: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, gates, h, c, tanh_c = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again, as by exact sharpening
            return _differentiable_gradient(inputs, g_outputs, ctx.needs_input_grad)
        x, w_ih, w_hh, *_ = inputs
        g_h_t, g_h, g_c = g_outputs
        steps, streams, units = tanh_c.shape
        i, f, g, o = gates.chunk(4, dim=-1)
        # d c / d (i, f, g) and d h / d o before their sigmoid or tanh, and d h / d c, at all time steps.
        slope = torch.stack(
            [g * (i - i * i), c[:-1] * (f - f * f), i * (1 - g * g), tanh_c * (o - o * o)], 2
        )
        slope_c = o * (1 - tanh_c * tanh_c)
        g_gates = x.new_empty(steps, streams, 4, units)
        g_h_t, g_h, g_c = g_h_t.to(c.dtype), g_h.to(c.dtype), g_c.clone()
        for t in reversed(range(steps)):
            g_h = g_h_t[t] + g_h
            g_c.addcmul_(g_h, slope_c[t])
            slope[t, :, :3] *= g_c[:, None]
            slope[t, :, 3] *= g_h
            g_gates[t] = slope[t]
            g_c *= f[t]
            g_h = torch.mm(g_gates[t].flatten(1), w_hh).to(c.dtype)
        g_gates = g_gates.view(steps * streams, 4 * units)
        g_x = (g_gates @ w_ih).view_as(x)
        g_w_ih = g_gates.T @ x.flatten(0, 1)
        g_w_hh = g_gates.T @ h[:-1].flatten(0, 1)
        return g_x, g_w_ih, g_w_hh, g_gates.sum(0), g_h.to(h.dtype), g_c


def lstm(
    x: Tensor, state: State, weights: list[Tensor], dropout: float, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A stack of layers with dropout between them, in bf16: outputs, and the last h and c of each layer."""
    h_n, c_n = [], []
    output = x.bfloat16()
    for number in range(len(weights) // 4):
        w_ih, w_hh, b_ih, b_hh = weights[4 * number : 4 * number + 4]
        if number:
            output = F.dropout(output, dropout, training)
        w_ih, w_hh, b = w_ih.bfloat16(), w_hh.bfloat16(), (b_ih + b_hh).bfloat16()
        h_0, c_0 = state[0][number].bfloat16(), state[1][number].float()
        output, h, c = FastLayer.apply(output, w_ih, w_hh, b, h_0, c_0)
        h_n.append(h)
        c_n.append(c)
    return output, torch.stack(h_n), torch.stack(c_n)


class WideLSTMs(TorchFunctionMode):
    """Inside the block, nn.LSTMs trained in bf16 on a CPU are computed by `lstm`, if wide or if torch cannot.

    Not for models under torch.func or non-reentrant checkpointing, which see another kernel outside.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.lstm and not kwargs and _suits(*args):
            x, state, weights, _, _, dropout, training, _, _ = args
            return lstm(x, state, weights, dropout, training)
        return func(*args, **(kwargs or {}))


def _suits(x: Tensor, state: Any, weights: Any, biases: bool, layers: int, *rest: Any) -> bool:
    """Whether these are arguments of an LSTM that `lstm` computes faster than torch, or that torch cannot."""
    if isinstance(state, Tensor):  # packed sequences, which have other arguments
        return False
    _dropout, _training, bidirectional, batch_first = rest
    return (
        x.device.type == "cpu"
        and weights[0].dtype == torch.float32
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and torch.is_grad_enabled()
        and biases
        and not bidirectional
        and not batch_first
        and len(weights) == 4 * layers  # no projections
        and (state[0].shape[-1] >= WIDE or not torch_computes_bf16())
    )


@cache
def torch_computes_bf16() -> bool:
    """Whether torch can train an LSTM in bf16 on this CPU; without AVX-512 it fails. Found by trying."""
    zeros = torch.zeros(4, 1, requires_grad=True)
    weights, state = [zeros, zeros, zeros[:, 0], zeros[:, 0]], [torch.zeros(1, 1, 1)] * 2
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
            x = torch.zeros(1, 1, 1)
            output, *_ = torch.lstm(x, state, weights, True, 1, 0.0, True, False, False)
        output.float().sum().backward()
    except RuntimeError:
        return False
    return True


def _differentiable_gradient(
    inputs: list[Tensor], g_outputs: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradient of `layer` by autograd; None for the inputs whose gradient nobody needs."""
    inputs = [tensor.view_as(tensor) for tensor in inputs]  # one may have been made from another
    wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(layer(*inputs), wanted, g_outputs, create_graph=True))
    return tuple(next(found) if is_needed else None for is_needed in needed)
