"""Standard normal noise that depends on a key and a place, not on who computes it.

Weight j of a draw gets the same noise however the vector is cut over threads, compiled or not (up to
the rounding of log, cos and sin), on any device.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from bayesrnn.variational import elementary
from bayesrnn.variational.one_pass import one_pass_of_pairs


def new_key(generator: Generator | None, device: torch.device) -> Tensor:
    """A key of 128 random bits: one draw's share of the generator's stream."""
    source = device if generator is None else generator.device
    key = torch.randint(
        -(2**31), 2**31, (4,), generator=generator, dtype=torch.int64, device=source
    )
    return key.to(device=device, dtype=torch.int32)


def normal_(eps: Tensor, key: Tensor) -> Tensor:
    """Fill a vector with N(0, 1), in place."""
    half = (eps.numel() + 1) // 2
    pairs = eps.numel() - half
    _box_muller_(eps[:pairs], eps[half:], key=key, start=0)
    if pairs < half:
        _box_muller_(eps[pairs:half], torch.empty_like(eps[:1]), key=key, start=pairs)
    return eps


@one_pass_of_pairs
def _box_muller_(first: Tensor, second: Tensor, *, key: Tensor, start: int) -> None:
    """Two normals from two uniforms: sqrt(-2 log u) times the cosine and the sine of an angle."""
    index = torch.arange(start, start + first.numel(), dtype=torch.int32, device=first.device)
    bits = _mix(_mix(index + key[0]) ^ key[1])
    turn = _mix(_mix(index + key[2]) ^ key[3])
    exact = torch.float64 if first.dtype == torch.float64 else torch.float32
    # The 31 low bits as a whole number: small ones stay exact, so the tail is not coarse.
    u = ((bits & 0x7FFFFFFF).to(exact) + 0.5) * 2.0**-31
    angle = turn.to(exact) * (math.pi * 2.0**-31)
    radius = torch.sqrt(-2 * torch.log(u))
    cos, sin = elementary.cos_sin(angle)
    first.copy_(radius * cos)
    second.copy_(radius * sin)


def _mix(x: Tensor) -> Tensor:
    """A bijection of the 32-bit integers in which each input bit flips each output bit half the time.

    Shifts and multiplications by the constants known as lowbias32.
    """
    x = x ^ _shift(x, 16)
    x = x * 0x7FEB352D
    x = x ^ _shift(x, 15)
    x = x * (0x846CA68B - 2**32)
    return x ^ _shift(x, 16)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own carries the sign along."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
