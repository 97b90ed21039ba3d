"""Standard normal noise that depends on a key and a place, not on who computes it.

Weight j of a draw gets the same noise however the vector is cut over threads, compiled or not (up to
the rounding of log, cos and sin), on any device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn.kernels import elementary
from bayesrnn.kernels.one_pass import OnePass, one_pass


def new_key(generator: Generator | None, device: torch.device) -> Tensor:
    """A key of 128 random bits: one draw's share of the generator's stream."""
    source = device if generator is None else generator.device
    key = torch.randint(
        -(2**31), 2**31, (4,), generator=generator, dtype=torch.int64, device=source
    )
    return key.to(device=device, dtype=torch.int32)


def normal_(eps: Tensor, key: Tensor) -> Tensor:
    """Fill a vector with N(0, 1), in place."""
    in_pairs(_normal_, eps, key=key)
    return eps


def in_pairs(function: OnePass, *vectors: Tensor, key: Tensor, **settings: Any) -> None:
    """Call a pass with the first halves of vectors, then their second halves: normals come in pairs."""
    size = vectors[0].numel()
    half, pairs = (size + 1) // 2, size // 2
    firsts, seconds = [v[:pairs] for v in vectors], [v[half:] for v in vectors]
    function(*firsts, *seconds, key=key, start=0, **settings)
    if pairs < half:  # the one in the middle has no partner
        middle = [v[pairs:half] for v in vectors]
        function(*middle, *(torch.zeros_like(v) for v in middle), key=key, start=pairs, **settings)


def halves_with_normals(
    halves: tuple[Tensor, ...], key: Tensor, start: int
) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """What `in_pairs` calls a pass with, as the vectors of each half and the noise for that half."""
    each = len(halves) // 2
    first, second = normals(key, start, halves[0])
    return [(halves[:each], first), (halves[each:], second)]


def normals(key: Tensor, start: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two normals for each place from `start` on, from two uniforms.

    They are sqrt(-2 log u) times the cosine and the sine of an angle (Box and Muller).
    """
    index = torch.arange(start, start + like.numel(), dtype=torch.int32, device=like.device)
    bits, turn = _mix(index, key[0], key[1]), _mix(index, key[2], key[3])
    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    # The 31 low bits as a whole number: small ones stay exact, so the tail is not coarse.
    u = ((bits & 0x7FFFFFFF).to(exact) + 0.5) * 2.0**-31
    angle = turn.to(exact) * (math.pi * 2.0**-31)
    radius = torch.sqrt(-2 * elementary.log(u))
    cos, sin = elementary.cos_sin(angle)
    return (radius * cos).to(like.dtype), (radius * sin).to(like.dtype)


@one_pass(pairs=True)
def _normal_(first: Tensor, second: Tensor, *, key: Tensor, start: int) -> None:
    for (eps,), normal in halves_with_normals((first, second), key, start):
        eps.copy_(normal)


def _mix(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A bijection of the 32-bit integers in which each input bit flips each output bit half the time.

    Shifts and multiplications by the constants known as triple32. Two multiplications would not do:
    weights some power of two apart would be correlated, by half a percent. One half of the key comes
    before the first of them and the other after it: with both before it, neighbouring keys would
    give two draws the same numbers in another order.
    """
    x = x + first
    x = x ^ _shift(x, 17)
    x = x * (0xED5AD4BB - 2**32)
    x = x ^ second
    x = x ^ _shift(x, 11)
    x = x * (0xAC4C1B51 - 2**32)
    x = x ^ _shift(x, 15)
    x = x * 0x31848BAB
    return x ^ _shift(x, 14)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own carries the sign along."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
