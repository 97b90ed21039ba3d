"""The order in which weights are dropped."""

from __future__ import annotations

import pytest
import torch

from bayesrnn.variational.pruning import drop_order, kept


def test_the_least_go_first():
    score = torch.tensor([3.0, 0.5, torch.inf, 1.0, 2.0])
    assert drop_order(score).tolist() == [0.6, 0.0, 0.8, 0.2, 0.4]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_just_the_share_asked_for_goes(size):
    score = torch.rand(size, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # ties
    order = drop_order(score)
    for dropped in range(size):
        stays = kept(order, dropped / size)
        assert int((~stays).sum()) == dropped
        if dropped > 0:
            assert score[~stays].max() <= score[stays].min()
    assert kept(order, 0.0).all()
