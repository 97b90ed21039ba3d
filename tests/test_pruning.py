"""Dropping weights of a model: the planted structure is found, and nothing is lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesrnn import Normal, Posterior
from bayesrnn.evaluation.pruning import curve, largest_drop
from bayesrnn.pruning import by_magnitude, by_signal_to_noise


def _planted() -> tuple[Posterior, torch.Tensor]:
    """A trained linear model of which every other true weight is zero; inputs differ in scale.

    A weight of a faint input is known but roughly: it is large by chance, and only sigma tells.
    """
    generator = torch.Generator().manual_seed(0)
    weights, data = 40, 400
    scale = torch.logspace(-1.3, 0.3, weights // 2).repeat_interleave(2)
    truth = torch.zeros(weights)
    truth[::2] = 0.4 / scale[::2]
    x = torch.randn(data, weights, generator=generator) * scale
    y = x @ truth + 0.5 * torch.randn(data, generator=generator)
    model = nn.Linear(weights, 1, bias=False)
    posterior = Posterior(model, Normal(30.0), sigma_init=0.05, kl_gradient="expected")
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.05)
    for step in range(1500):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.998**step
        optimizer.zero_grad()
        posterior.backward(
            lambda: F.mse_loss(model(x).squeeze(-1), y, reduction="sum") / (2 * 0.25),
            kl_weight=1.0,
            generator=generator,
        )
        optimizer.step()
    return posterior, truth != 0


def test_planted_structure_is_found():
    posterior, real = _planted()
    by_noise = by_signal_to_noise(posterior).kept(0.5)["weight"].flatten()
    assert torch.equal(by_noise, real)
    by_size = by_magnitude(posterior.weights.model_weights()).kept(0.5)["weight"].flatten()
    assert not torch.equal(by_size, real)  # size alone does not tell: this test can fail


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_inside_the_block_weights_are_zero_and_after_it_they_are_back():
    model = _model()
    posterior = Posterior(model, Normal(1.0))
    weights = posterior.weights.model_weights()
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    order = by_signal_to_noise(posterior)

    def fail() -> None:
        with order.dropped(0.5) as kept:
            zeros = int((posterior.mu == 0).sum())
            assert zeros == len(posterior.mu) // 2 + 1  # 83 weights
            for name, weight in weights.items():
                assert torch.equal(weight, before[name] * kept[name])
            assert torch.equal(model[0].weight, before["0.weight"] * kept["0.weight"])
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    for name, weight in weights.items():
        assert torch.equal(weight, before[name])


def test_dropping_nothing_changes_nothing():
    model = _model()
    x = torch.randn(5, 6)
    before = model(x)
    with by_signal_to_noise(Posterior(model, Normal(1.0))).dropped(0.0):
        assert torch.equal(model(x), before)


def test_per_tensor_drops_the_share_of_each():
    model = _model()
    kept = by_magnitude(dict(model.named_parameters()), per_tensor=True).kept(0.25)
    for name, parameter in model.named_parameters():
        assert int((~kept[name]).sum()) == -(-parameter.numel() // 4)


@pytest.mark.parametrize("drop", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_lies_between_0_and_1(drop):
    with pytest.raises(ValueError, match="share of the weights"):
        by_magnitude(dict(_model().named_parameters())).kept(drop)


def test_the_largest_drop_within_a_limit():
    model = nn.Linear(1000, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(1, 1001.0) / 1000)
    order = by_magnitude({"weight": model.weight})

    def lost() -> float:
        return float((model.weight == 0).sum()) / 1000

    points = curve(order, lost, drops=(0.0, 0.2, 0.4, 0.9))
    assert points == {0.0: 0.0, 0.2: 0.2, 0.4: 0.4, 0.9: 0.9}
    found = largest_drop(order, lost, points, limit=0.61, steps=12)
    assert 0.609 < found <= 0.61
    assert largest_drop(order, lost, points, limit=1.0) == 0.9
    with pytest.raises(ValueError, match="nothing dropped"):
        largest_drop(order, lost, points, limit=-1.0)
