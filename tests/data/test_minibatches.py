"""Shuffled minibatches: every example once a pass, and the KL paid once."""

from __future__ import annotations

import math

import pytest
import torch

from bayesrnn.data.minibatches import Minibatches


def _minibatches(count: int = 103, **options) -> Minibatches:
    x = torch.arange(count, dtype=torch.float32)
    return Minibatches(x, x.long(), batch_size=10, **options)


def test_every_example_once_a_pass_in_another_order_each_time():
    minibatches = _minibatches()
    orders = [[int(v) for x, _ in minibatches for v in x] for _ in range(3)]
    assert all(sorted(order) == list(range(103)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    again = _minibatches()
    assert [int(v) for x, _ in again for v in x] == orders[0]
    again.begin(2)
    assert [int(v) for i in range(len(again)) for v in again[i][1]] == orders[2]
    assert [int(v) for x, _ in _minibatches(seed=1) for v in x] != orders[0]
    for x, y in minibatches:
        assert torch.equal(x.long(), y)


@pytest.mark.parametrize("count", [1, 9, 103, 60_000])
def test_uniform_shares_add_up_to_one(count):
    minibatches = _minibatches(count)
    shares = [10 * weight for weight in minibatches.kl_weights]
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
    assert len(set(shares)) == 1


@pytest.mark.parametrize("count", [1, 9, 25, 103, 60_000])
def test_geometric_shares_are_blundells(count):
    minibatches = _minibatches(count, weighting="geometric")
    batches = len(minibatches)
    shares = [10 * weight for weight in minibatches.kl_weights]
    assert len(shares) == batches
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
    if batches < 60:
        expected = [2 ** (batches - i) / (2**batches - 1) for i in range(1, batches + 1)]
        assert shares == pytest.approx(expected, rel=1e-12)
    assert shares[0] >= 0.5


def test_minibatches_taken_ahead_cannot_have_the_wrong_weight():
    """A queue is filled before its first minibatch is used: no weight may depend on the last one taken."""
    geometric = _minibatches(weighting="geometric")
    taken_ahead = list(zip(geometric, geometric.kl_weights, strict=True))
    assert [weight for _, weight in taken_ahead] == pytest.approx(
        [2.0 ** (10 - i) / 2047 / 10 for i in range(11)]
    )
    with pytest.raises(ValueError, match="zip.minibatches, minibatches.kl_weights"):
        _ = geometric.kl_weight("mean")
    uniform = _minibatches()
    list(uniform)
    assert uniform.kl_weight("mean") == pytest.approx(1 / 110)
    assert uniform.kl_weight("sum") == pytest.approx(1 / len(uniform))
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        uniform.kl_weight("sum over time")


def test_bad_input():
    x = torch.zeros(5)
    for arguments, options, message in [
        ((x, x[:3]), {"batch_size": 2}, "5 inputs but 3 targets"),
        ((x[:0], x[:0]), {"batch_size": 2}, "no examples"),
        ((x, x), {"batch_size": 0}, "batch_size=0"),
        ((x, x), {"batch_size": 2, "weighting": "linear"}, "weighting='linear'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Minibatches(*arguments, **options)


def test_with_lengths_every_example_still_comes_once_and_similar_lengths_come_together():
    count = 1003
    lengths = torch.randint(1, 40, (count,), generator=torch.Generator().manual_seed(0))
    sorted_, plain = _minibatches(count, lengths=lengths), _minibatches(count)
    for number in range(2):
        sorted_.begin(number)
        order = [int(v) for i in range(len(sorted_)) for v in sorted_[i][1]]
        assert sorted(order) == list(range(count))
    sizes = [len(sorted_[i][0]) for i in range(len(sorted_))]
    assert sorted(sizes) == [3] + [10] * 100
    assert sorted_.kl_weights == plain.kl_weights

    def padded(minibatches: Minibatches) -> int:
        rows = [lengths[minibatches[i][1]] for i in range(len(minibatches))]
        return sum(int(row.max()) * len(row) for row in rows)

    words = int(lengths.sum())
    assert padded(sorted_) < 1.08 * words
    assert padded(plain) > 1.5 * words
    first = [int(lengths[sorted_[i][1]].max()) for i in range(len(sorted_))]
    assert first != sorted(first)  # short and long minibatches alternate
    with pytest.raises(ValueError, match="2 lengths"):
        _minibatches(lengths=lengths[:2])


def test_its_representation_is_one_line():
    assert repr(_minibatches(weighting="geometric")) == (
        "Minibatches(103 examples, in 11 minibatches of 10, geometric shares of the KL)"
    )
