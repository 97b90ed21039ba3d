"""The series that compiled passes use, against float64 and against what the compiler makes of them."""

import math

import pytest
import torch
import torch._inductor.config
from torch.nn import functional as F

from bayesrnn.kernels import elementary, one_pass, passes
from bayesrnn.variational import elementary as plain
from bayesrnn.variational import gaussian

WIDE = torch.cat([-torch.logspace(-30, 1.9, 4000), torch.zeros(1), torch.logspace(-30, 4, 4000)])


def _relative_error(value, right):
    return ((value.double() - right) / right).abs().max().item()


def test_softplus():
    right = torch.logaddexp(WIDE.double(), torch.zeros((), dtype=torch.float64))
    assert _relative_error(elementary.softplus(WIDE), right) < 3e-7
    tails = torch.tensor([-math.inf, -200.0, math.inf, math.nan])
    tiny = math.exp(-87)
    torch.testing.assert_close(
        elementary.softplus(tails),
        torch.tensor([tiny, tiny, math.inf, math.nan]),
        equal_nan=True,
        atol=0,
        rtol=1e-6,
    )


def test_exp_of_minus():
    x = torch.logspace(-37, math.log10(86.9), 20_000)
    assert _relative_error(elementary.exp_of_minus(x), torch.exp(-x.double())) < 2e-7
    assert elementary.exp_of_minus(torch.zeros(1)).item() == 1
    last = elementary.exp_of_minus(torch.tensor(87.0))
    assert last.item() == pytest.approx(math.exp(-87), rel=1e-6)
    assert elementary.exp_of_minus(torch.tensor(math.nan)).isnan()


def test_sigmoid():
    right = torch.sigmoid(WIDE.double())
    assert _relative_error(elementary.sigmoid(WIDE), right) < 3e-7
    tails = torch.tensor([-math.inf, math.inf, math.nan])
    right = torch.tensor([math.exp(-87), 1, math.nan])
    for value in (elementary.sigmoid(tails), plain.sigmoid(tails)):
        torch.testing.assert_close(value, right, equal_nan=True, atol=0, rtol=1e-6)


def test_one_minus_exp():
    x = torch.cat([torch.logspace(-37, 2, 8000), torch.linspace(0.29, 0.31, 999)])
    right = -torch.expm1(-x.double())
    assert _relative_error(elementary.one_minus_exp(x), right) < 2e-7
    assert elementary.one_minus_exp(torch.zeros(1)).item() == 0
    assert elementary.one_minus_exp(torch.tensor(math.inf)).item() == 1


def test_log():
    x = torch.cat([torch.logspace(-37, 38, 20_000), torch.linspace(0.5, 1.5, 100_000)])
    right = x.double().log()
    found = elementary.log_by_bits(x).double()
    torch.testing.assert_close(found, right, rtol=3e-7, atol=0)
    assert elementary.log_by_bits(torch.ones(1)).item() == 0


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
    theta, sigma = torch.empty_like(rho), torch.empty_like(rho)
    key = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    passes.sample_(theta, sigma, torch.zeros_like(rho), rho, key=key)
    torch.testing.assert_close(sigma, F.softplus(rho), rtol=rtol, atol=0)
    slope = torch.empty_like(rho)
    one_pass.one_pass()(_slope_)(slope, sigma)
    torch.testing.assert_close(slope, -torch.expm1(-sigma), rtol=rtol, atol=0)


def test_sigma_at_both_ends_when_compiled(monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    rho = torch.tensor([-math.inf, -1e30, -200.0, 88.0, 1e30, math.inf]).repeat(50)
    theta, sigma = torch.empty_like(rho), torch.empty_like(rho)
    key = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    passes.sample_(theta, sigma, torch.zeros_like(rho), rho, key=key)
    right = torch.tensor([math.exp(-87)] * 3 + [88.0, 1e30, math.inf]).repeat(50)
    torch.testing.assert_close(sigma, right, rtol=1e-6, atol=0)


def test_nothing_is_reordered_even_where_the_user_allows_that(monkeypatch):
    """exp rounds by adding a large number and taking it away again."""
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(passes._sample_, "_compiled", {})
    rho = torch.linspace(-30, 5, 1000)
    theta, sigma, mu = (torch.zeros_like(rho) for _ in range(3))
    key = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    with torch._inductor.config.patch({"cpp.enable_unsafe_math_opt_flag": True}):
        passes.sample_(theta, sigma, mu, rho, key=key)
    torch.testing.assert_close(sigma, F.softplus(rho), rtol=1e-6, atol=0)


def _slope_(slope, sigma):
    slope.copy_(gaussian.sigmoid_rho(sigma))
