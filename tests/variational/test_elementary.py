"""The series that compiled passes use, against float64 and against what the compiler makes of them."""

import math

import pytest
import torch
from torch.nn import functional as F

from bayesrnn.variational import elementary, gaussian, one_pass, passes

WIDE = torch.cat([-torch.logspace(-30, 1.9, 4000), torch.zeros(1), torch.logspace(-30, 4, 4000)])


def _relative_error(value, right):
    return ((value.double() - right) / right).abs().max().item()


def test_softplus():
    right = torch.logaddexp(WIDE.double(), torch.zeros((), dtype=torch.float64))
    assert _relative_error(elementary.softplus_series(WIDE), right) < 5e-7
    tails = torch.tensor([-math.inf, math.inf, math.nan])
    torch.testing.assert_close(elementary.softplus_series(tails), F.softplus(tails), equal_nan=True)


def test_one_minus_exp():
    x = torch.cat([torch.logspace(-37, 2, 8000), torch.linspace(0.29, 0.31, 999)])
    right = -torch.expm1(-x.double())
    assert _relative_error(elementary.one_minus_exp_series(x), right) < 4e-7
    assert elementary.one_minus_exp_series(torch.zeros(1)).item() == 0
    assert elementary.one_minus_exp_series(torch.tensor(math.inf)).item() == 1


def test_cos_sin():
    angle = torch.linspace(-math.pi, math.pi, 100_001)
    cos, sin = elementary.cos_sin_series(angle)
    torch.testing.assert_close(cos, angle.double().cos().float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(sin, angle.double().sin().float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 2e-2)]
)
def test_the_gradient_of_a_tiny_sigma_does_not_vanish_when_compiled(dtype, rtol, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    rho = torch.linspace(-30, 5, 1000, dtype=dtype)
    sigma = torch.empty_like(rho)
    passes.sigma_(sigma, rho)
    torch.testing.assert_close(sigma, F.softplus(rho), rtol=rtol, atol=0)
    slope = torch.empty_like(rho)
    one_pass.one_pass()(_slope_)(slope, sigma)
    torch.testing.assert_close(slope, -torch.expm1(-sigma), rtol=rtol, atol=0)


def _slope_(slope, sigma):
    slope.copy_(gaussian.sigmoid_rho(sigma))
