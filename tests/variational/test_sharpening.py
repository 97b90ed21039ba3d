"""Sharpening's formulas against autograd through the whole sampler, on a small quadratic loss."""

from __future__ import annotations

import pytest
import torch

from bayesrnn.variational import sharpening

SIGMA0, SCALE, D = 0.1, 0.25, 6


@pytest.fixture
def made():
    torch.manual_seed(0)
    half = torch.randn(D, D, dtype=torch.float64)
    phi, eta, eps0 = torch.randn(3, D, dtype=torch.float64)
    return half @ half.T, phi.requires_grad_(), eta.abs().mul(0.01).requires_grad_(), eps0


def _loss(matrix, theta):
    return theta @ matrix @ theta / 2


def test_theta_and_its_kl(made):
    matrix, phi, eta, eps0 = (vector.detach() for vector in made)
    g_phi = matrix @ phi
    theta = sharpening.sharpen(phi, g_phi, eta, SIGMA0, eps0)
    torch.testing.assert_close(theta, phi - eta * g_phi + SIGMA0 * eps0)
    centre, still = (
        torch.distributions.Normal(at, torch.full((D,), SIGMA0, dtype=torch.float64))
        for at in (phi - eta * g_phi, phi)
    )
    kl = torch.distributions.kl_divergence(centre, still).sum()
    torch.testing.assert_close(sharpening.kl_theta(g_phi, eta, SIGMA0), kl)


def test_gradients_of_eta_and_of_phi_through_its_gradient(made):
    matrix, phi, eta, eps0 = made
    g_phi = matrix @ phi  # the gradient of the loss at phi, and a function of phi
    theta = phi - eta * g_phi + SIGMA0 * eps0
    energy = _loss(matrix, theta) + SCALE * (eta * g_phi).square().sum() / (2 * SIGMA0**2)
    by_eta, by_phi = torch.autograd.grad(energy, [eta, phi])
    g_theta, plain, step = matrix @ theta.detach(), g_phi.detach(), eta.detach()
    torch.testing.assert_close(sharpening.eta_gradient(g_theta, plain, step, SIGMA0, SCALE), by_eta)
    u = sharpening.hessian_direction(g_theta, plain, step, SIGMA0, SCALE)
    torch.testing.assert_close(g_theta + matrix @ u, by_phi)  # the matrix is the Hessian
