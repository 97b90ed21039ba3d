"""Classification with an ensemble, and rotation of images."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bayesrnn import Normal, Posterior
from bayesrnn.methods.bbb import BayesByBackprop
from bayesrnn.tasks.digits.evaluation import classify, rotate
from bayesrnn.tasks.digits.models import LeNet, Perceptron


def _case() -> tuple[BayesByBackprop, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = Perceptron(16, 4, hidden=8)
    method = BayesByBackprop(Posterior(model, Normal(1.0), sigma_init=0.3))
    return method, torch.randn(50, 1, 4, 4), torch.randint(4, (50,))


def test_an_ensemble_is_the_average_of_its_members():
    method, x, y = _case()
    members = method.members(3, 5)
    probs = []
    for member in members:
        with member(), torch.no_grad():
            probs.append(method.model(x).softmax(-1))
    mean = torch.stack(probs).mean(0)
    found = classify(method.model, members, x, y)
    torch.testing.assert_close(found.log_probs.exp(), mean)
    assert found.error == pytest.approx((mean.argmax(-1) != y).double().mean().item())
    assert found.nats == pytest.approx(-mean[range(50), y].log().mean().item(), rel=1e-5)
    assert found.mutual_information.min() >= 0
    assert found.mutual_information.max() > 0.01
    assert found.calibration().nats == pytest.approx(found.nats, rel=1e-5)
    assert found.calibration().accuracy == pytest.approx(1 - found.error)
    rest = classify(method.model, [nullcontext], x, y)
    assert rest.mutual_information.abs().max() < 1e-6


def test_rotation():
    x = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotate(x, 0), x)
    torch.testing.assert_close(rotate(x, 180), x.flip(2, 3), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotate(rotate(x, 90), 90), rotate(x, 180), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotate(x, 360), x, rtol=1e-4, atol=1e-4)
    quarter = rotate(x, 90)
    torch.testing.assert_close(quarter, torch.rot90(x, 1, (2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [8, 28])
def test_networks_accept_images_of_either_size(size):
    for model in (Perceptron(size * size, 10, hidden=12), LeNet(size, 10, hidden=12)):
        assert isinstance(model, nn.Module)
        assert model(torch.zeros(2, 1, size, size)).shape == (2, 10)
