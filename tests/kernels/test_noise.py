"""The noise: normal, independent, and the same however it is computed."""

from __future__ import annotations

import math

import pytest
import torch

from bayesrnn.kernels import noise, one_pass

CPU = torch.device("cpu")


def _draws(count, size, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            noise.normal_(torch.empty(size, dtype=dtype), noise.new_key(generator, CPU))
            for _ in range(count)
        ]
    )


def test_one_long_draw_is_standard_normal():
    eps = _draws(1, 2_000_001, dtype=torch.float32)[0].double()
    n = len(eps)
    moments = [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0), (6, 15.0, 10170.0)]
    for power, mean, variance in moments:
        z = (eps.pow(power).mean() - mean) / math.sqrt(variance / n)
        assert z.abs() < 4, (power, z)
    for point in (-3.0, -1.0, 0.0, 0.5, 2.0, 4.0):
        share = 0.5 * (1 + math.erf(point / math.sqrt(2)))
        z = ((eps < point).double().mean() - share) / math.sqrt(share * (1 - share) / n)
        assert z.abs() < 4, (point, z)


@pytest.mark.parametrize("seed", [1, 11, 22])
def test_no_two_places_of_a_long_draw_or_of_two_are_correlated(seed):
    """A hash of too few rounds shows at lags that are powers of two."""
    eps, other = _draws(2, 4_000_000, seed=seed, dtype=torch.float32)
    half = len(eps) // 2
    for lag in (*(2**k for k in range(21)), 3, half - 1, half, half + 1):
        squares = (eps.square() - 1) / math.sqrt(2)
        for values, later in [(eps, eps), (squares, squares), (eps, other)]:
            products = values[:-lag] * later[lag:]
            z = products.mean(dtype=torch.float64) * math.sqrt(len(products))
            assert z.abs() < 4.5, (lag, z)  # of 75 z-scores


def test_neighbouring_keys_share_no_more_numbers_than_chance():
    index = torch.arange(1_000_000, dtype=torch.int32)
    for first, second in [(5, 7), (6, 8), (5, -8), (1_000, 7)]:
        keys = torch.tensor([5, 9, first, second], dtype=torch.int32)
        one, other = noise._mix(index, *keys[:2]), noise._mix(index, *keys[2:])
        assert torch.isin(one, other).float().mean() < 1e-3  # by chance 2.3e-4


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_draws_after_one_another_are_independent(size):
    eps = _draws(20_000, size, seed=2)
    assert (eps.mean(0) * math.sqrt(len(eps))).abs().max() < 4
    assert ((eps.var(0) - 1) * math.sqrt(len(eps) / 2)).abs().max() < 4
    lagged = (eps[1:] * eps[:-1]).mean(0) * math.sqrt(len(eps))
    assert lagged.abs().max() < 4
    squares = (eps.square() - 1) / math.sqrt(2)
    for values in (eps, squares):
        correlation = values.T @ values / len(eps)
        correlation.fill_diagonal_(0)
        assert correlation.abs().max() * math.sqrt(len(eps)) < 4.2


def test_stretches_do_not_matter(monkeypatch):
    key = noise.new_key(torch.Generator().manual_seed(3), CPU)
    whole = noise.normal_(torch.empty(1001), key)
    monkeypatch.setattr(one_pass, "STRETCH", 37)
    assert torch.equal(noise.normal_(torch.empty(1001), key), whole)


def test_a_generator_decides_and_goes_on():
    generator = torch.Generator().manual_seed(4)
    first, second = noise.new_key(generator, CPU), noise.new_key(generator, CPU)
    assert not torch.equal(first, second)
    assert torch.equal(noise.new_key(generator.manual_seed(4), CPU), first)


def test_the_tail_is_finite_and_fine():
    eps = _draws(1, 4_000_000, seed=5, dtype=torch.float32)[0]
    assert torch.isfinite(eps).all()
    assert 4.6 < eps.abs().max() < 6.7
    tail = eps[eps.abs() > 4]
    assert len(tail.unique()) == len(tail)


def test_threads_do_not_matter():
    key = noise.new_key(torch.Generator().manual_seed(6), CPU)
    before = torch.get_num_threads()
    try:
        draws = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            draws.append(noise.normal_(torch.empty(300_000), key))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
