"""The formulas of this room joined into passes over memory, in place; each equation stands elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.variational import bbb, gaussian, noise, priors, sharpening
from bayesrnn.variational.one_pass import one_pass


@one_pass()
def sigma_(sigma: Tensor, rho: Tensor) -> None:
    """sigma <- softplus(rho)."""
    sigma.copy_(gaussian.sigma_from_rho(rho))


def sample_(
    theta: Tensor, mu: Tensor, rho: Tensor, sigma: Tensor, eps: Tensor, *, key: Tensor
) -> None:
    """eps <- N(0, 1) by the key, sigma <- softplus(rho), and theta."""
    noise.in_pairs(_sample_, theta, mu, rho, sigma, eps, key=key)


@one_pass(pairs=True)
def _sample_(*halves: Tensor, key: Tensor, start: int) -> None:
    for (theta, mu, rho, sigma, eps), normal in noise.halves_with_normals(halves, key, start):
        new_sigma = gaussian.sigma_from_rho(rho)
        eps.copy_(normal)
        sigma.copy_(new_sigma)
        theta.copy_(gaussian.reparameterise(mu, new_sigma, normal))


@one_pass()
def sampled_gradients_(
    g_mu: Tensor,
    g: Tensor,
    eps: Tensor,
    mu: Tensor,
    sigma: Tensor,
    *,
    prior: Any,
    kl_weight: Tensor,
) -> None:
    """g_mu, and eps <- g_rho, the KL from one sample."""
    score = priors.score(prior, gaussian.reparameterise(mu, sigma, eps))
    by_mu, by_rho = bbb.gradients(g, score, eps, sigma, kl_weight)
    g_mu.copy_(by_mu)
    eps.copy_(by_rho)


@one_pass()
def expected_gradients_(
    g_mu: Tensor,
    g: Tensor,
    eps: Tensor,
    mu: Tensor,
    sigma: Tensor,
    *,
    prior: Any,
    kl_weight: Tensor,
) -> None:
    """g_mu, and eps <- g_rho, the KL in expectation."""
    score = prior.expected_score(mu, sigma)
    by_mu, by_rho = bbb.expected_gradients(g, score, eps, sigma, kl_weight)
    g_mu.copy_(by_mu)
    eps.copy_(by_rho)


def sharpen_(
    phi: Tensor, g_phi: Tensor, kappa: Tensor, *, key: Tensor, eta_unit: float, sigma0: float
) -> Tensor:
    """phi <- theta, its noise eps0 by the key; returns KL_theta in nats."""
    exact = torch.promote_types(phi.dtype, torch.float32)
    kl = torch.zeros(1, dtype=exact, device=phi.device)
    settings = {"eta_unit": eta_unit, "sigma0": sigma0}
    noise.in_pairs(_sharpen_, phi, g_phi, kappa, key=key, kl=kl, **settings)
    return kl[0]


@one_pass(pairs=True)
def _sharpen_(
    *halves: Tensor, key: Tensor, start: int, kl: Tensor, eta_unit: float, sigma0: float
) -> None:
    for (phi, g_phi, kappa), eps0 in noise.halves_with_normals(halves, key, start):
        eta = kappa * eta_unit
        kl.add_(sharpening.kl_theta(g_phi, eta, sigma0))
        phi.copy_(sharpening.sharpen(phi, g_phi, eta, sigma0, eps0))


@one_pass()
def kappa_gradient_(
    g_phi: Tensor,
    g_theta: Tensor,
    kappa: Tensor,
    *,
    eta_unit: float,
    sigma0: float,
    loss_scale: float,
) -> None:
    """g_phi <- g_kappa."""
    g_eta = sharpening.eta_gradient(g_theta, g_phi, kappa * eta_unit, sigma0, loss_scale)
    g_phi.copy_(g_eta * eta_unit)
