"""Bayes by Backprop's two gradients against autograd through the reparameterised sample."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from bayesrnn.variational import bbb, gaussian

W, D = 0.3, 7


@pytest.fixture
def vectors():
    torch.manual_seed(0)
    mu, rho, eps = torch.randn(3, D, dtype=torch.float64)
    return mu.requires_grad_(), rho.requires_grad_(), eps


def _loss(theta):
    return (theta.sin() * torch.arange(1, D + 1)).sum()


def _log_prior(theta):
    return (-theta.abs().pow(1.5)).sum()


def _at(theta, function):
    leaf = theta.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    return gradient


def test_gradients_of_the_sampled_free_energy(vectors):
    mu, rho, eps = vectors
    sigma = F.softplus(rho)
    theta = mu + sigma * eps
    log_q = torch.distributions.Normal(mu, sigma).log_prob(theta).sum()
    energy = _loss(theta) + W * (log_q - _log_prior(theta))
    right = torch.autograd.grad(energy, [mu, rho])
    g, score = _at(theta, _loss), _at(theta, _log_prior)
    found = bbb.gradients(g, score, eps, gaussian.sigma_from_rho(rho.detach()), W)
    torch.testing.assert_close(found, right)


def test_gradients_of_the_expected_free_energy(vectors):
    """With p = N(0, 1), E_q[log p] = -(mu^2 + sigma^2) / 2 + const."""
    mu, rho, eps = vectors
    sigma = F.softplus(rho)
    kl = (-sigma.log() + (mu.square() + sigma.square()) / 2).sum()
    right = torch.autograd.grad(_loss(mu + sigma * eps) + W * kl, [mu, rho])
    plain, g = sigma.detach(), _at(mu + sigma * eps, _loss)
    found = bbb.expected_gradients(g, (-mu.detach(), -plain), eps, plain, W)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_a_temperature_scales_the_kl_in_sigmas_gradient_alone(vectors, temperature):
    mu, rho, eps = (vector.detach() for vector in vectors)
    sigma, zero = gaussian.sigma_from_rho(rho), torch.zeros(D, dtype=torch.float64)
    score = -(mu + sigma * eps)
    whole = bbb.gradients(zero, score, eps, sigma, W)
    tempered = bbb.gradients(zero, score, eps, sigma, W, temperature * W)
    torch.testing.assert_close(tempered, (whole[0], temperature * whole[1]))
    expected = (-mu, -sigma)
    whole = bbb.expected_gradients(zero, expected, eps, sigma, W)
    tempered = bbb.expected_gradients(zero, expected, eps, sigma, W, temperature * W)
    torch.testing.assert_close(tempered, (whole[0], temperature * whole[1]))
