"""The formulas of `variational` joined into passes over memory, in place. No equation is written here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels import noise
from bayesrnn.kernels.one_pass import STRETCH, OnePass, constant, one_pass
from bayesrnn.variational import bbb, bump_fit, gaussian, priors, sharpening

constant(bump_fit.fit)


def sample_(theta: Tensor, sigma: Tensor, mu: Tensor, rho: Tensor, *, key: Tensor) -> None:
    """sigma <- softplus(rho), theta <- mu + sigma * eps, eps by the key."""
    noise.in_pairs(_sample_, theta, sigma, mu, rho, key=key)


@one_pass(pairs=True)
def _sample_(*halves: Tensor, key: Tensor, start: int) -> None:
    for (theta, sigma, mu, rho), eps in noise.halves_with_normals(halves, key, start):
        new_sigma = gaussian.sigma_from_rho(rho)
        sigma.copy_(new_sigma)
        theta.copy_(gaussian.reparameterise(mu, new_sigma, eps))


def with_prior(run: OnePass, *vectors: Tensor, prior: Any, **settings: Tensor) -> None:
    """Run one of the two passes below with any prior, also one of vectors, or one that ties weights."""
    own = getattr(prior, "vectors", ())
    if own:
        run(*vectors, *own, prior=type(prior), **settings)
    elif getattr(prior, "elementwise", False):
        run(*vectors, prior=prior, **settings)
    else:
        run.function(*vectors, prior=prior, **settings)


@one_pass()
def sampled_gradients_(
    g: Tensor,
    sigma: Tensor,
    theta: Tensor,
    mu: Tensor,
    *of_prior: Tensor,
    prior: Any,
    kl_weight: Tensor,
    sigma_weight: Tensor,
) -> None:
    """g <- g_mu, sigma <- g_rho, the KL from one sample."""
    prior = prior(*of_prior) if of_prior else prior
    eps = gaussian.noise_at(theta, mu, sigma)
    score = priors.score(prior, theta)
    g_mu, g_rho = bbb.gradients(g, score, eps, sigma, kl_weight, sigma_weight)
    g.copy_(g_mu)
    sigma.copy_(g_rho)


@one_pass()
def expected_gradients_(
    g: Tensor,
    sigma: Tensor,
    theta: Tensor,
    mu: Tensor,
    *of_prior: Tensor,
    prior: Any,
    kl_weight: Tensor,
    sigma_weight: Tensor,
) -> None:
    """g <- g_mu, sigma <- g_rho, the KL in expectation."""
    prior = prior(*of_prior) if of_prior else prior
    eps = gaussian.noise_at(theta, mu, sigma)
    score = prior.expected_score(mu, sigma)
    g_mu, g_rho = bbb.expected_gradients(g, score, eps, sigma, kl_weight, sigma_weight)
    g.copy_(g_mu)
    sigma.copy_(g_rho)


def kl_per_weight(kl: Tensor, mu: Tensor, sigma: Tensor, *, prior: Any) -> None:
    """kl <- KL[q || p] of each weight. By stretches: a quadrature makes many passes over its vectors."""
    own = getattr(prior, "vectors", ())
    apart = own or getattr(prior, "elementwise", False)
    size = STRETCH if apart else max(mu.numel(), 1)
    for kl_, mu_, sigma_, *own_ in zip(
        *(v.split(size) for v in (kl, mu, sigma, *own)), strict=True
    ):
        its = type(prior)(*own_) if own_ else prior
        kl_.copy_(-gaussian.entropy(sigma_) - priors.expected_log_prob(its, mu_, sigma_))


def sharpen_(
    theta: Tensor,
    phi: Tensor,
    g_phi: Tensor,
    kappa: Tensor,
    *,
    key: Tensor,
    eta_unit: float,
    sigma0: float,
) -> Tensor:
    """theta <- phi - eta * g_phi + sigma0 * eps0, eps0 by the key; returns KL_theta in nats."""
    exact = torch.promote_types(phi.dtype, torch.float32)
    kl = torch.zeros(1, dtype=exact, device=phi.device)
    settings = {"eta_unit": eta_unit, "sigma0": sigma0}
    noise.in_pairs(_sharpen_, theta, phi, g_phi, kappa, key=key, kl=kl, **settings)
    return kl[0]


@one_pass(pairs=True)
def _sharpen_(
    *halves: Tensor, key: Tensor, start: int, kl: Tensor, eta_unit: float, sigma0: float
) -> None:
    for (theta, phi, g_phi, kappa), eps0 in noise.halves_with_normals(halves, key, start):
        eta = kappa * eta_unit
        kl.add_(sharpening.kl_theta(g_phi, eta, sigma0))
        theta.copy_(sharpening.sharpen(phi, g_phi, eta, sigma0, eps0))


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
