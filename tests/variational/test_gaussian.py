from __future__ import annotations

import torch
from torch.nn import functional as F

from bayesrnn.variational import bbb, gaussian


def test_rho_and_sigma_are_inverse_over_thirty_decades():
    sigma = torch.logspace(-28, 1.2, 500, dtype=torch.float64)
    torch.testing.assert_close(
        gaussian.sigma_from_rho(gaussian.rho_from_sigma(sigma)), sigma, rtol=1e-8, atol=0
    )


def test_sigmoid_of_rho_from_sigma():
    rho = torch.linspace(-60, 15, 500, dtype=torch.float64)
    sigma = gaussian.sigma_from_rho(rho)
    torch.testing.assert_close(gaussian.sigmoid_rho(sigma), rho.sigmoid(), rtol=1e-12, atol=0)


def test_log_prob_at_noise():
    mu, sigma, eps = torch.randn(5).double(), torch.rand(5).double(), torch.randn(5).double()
    theta = gaussian.reparameterise(mu, sigma, eps)
    right = torch.distributions.Normal(mu, sigma).log_prob(theta)
    torch.testing.assert_close(gaussian.log_prob_at_noise(sigma, eps), right)


def test_entropy():
    sigma = torch.rand(5).double()
    right = torch.distributions.Normal(torch.zeros_like(sigma), sigma).entropy()
    torch.testing.assert_close(gaussian.entropy(sigma), right)


def test_gradients_stay_finite_when_sigma_vanishes():
    """At rho = -200 sigma underflows in float32; the KL must still push it up, by exactly w."""
    rho = torch.tensor([-200.0, -90.0, -50.0])
    sigma = gaussian.sigma_from_rho(rho)
    assert (sigma > 0).all()
    zeros = torch.zeros(3)
    _, g_rho = bbb.gradients(zeros, zeros, torch.ones(3), sigma, kl_weight=0.5)
    torch.testing.assert_close(g_rho, torch.full((3,), -0.5))
    assert (F.softplus(rho)[0] == 0).all()  # what the clamp is for
