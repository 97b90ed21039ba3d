"""Slow, obvious oracles: the free energies as the paper writes them, differentiated by autograd."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.func import functional_call
from torch.nn import functional as F

from bayesrnn.kernels import noise as kernel


def _loss_at(posterior, case, theta):
    """The case's loss with the flat vector theta in place of the model's Bayesian weights."""
    by_name = {}
    for slot in posterior.layout:
        by_name[slot.name] = theta[slot.span].view(slot.shape)
    torch.manual_seed(case.seed)
    output = functional_call(posterior.model, by_name, case.inputs)
    return case.loss(output)


def _kl_terms(posterior, mu, rho, theta, log_prior):
    """log q(theta) - log p(theta), padding rows left out."""
    keep = torch.ones_like(theta, dtype=torch.bool)
    for span in posterior.layout.fixed:
        keep[span] = False
    log_q = TorchNormal(mu, F.softplus(rho)).log_prob(theta)
    log_p = log_prior(theta)
    return (
        (log_q - log_p)[keep].sum()
        if log_p.shape == log_q.shape
        else log_q[keep].sum() - log_p.sum()
    )


def bbb_gradients(posterior, case, eps, kl_weight, log_prior):
    """d/d(mu, rho) of loss(theta) + w * (log q(theta) - log p(theta)) at theta = mu + sigma * eps."""
    mu = posterior.mu.detach().clone().requires_grad_()
    rho = posterior.rho.detach().clone().requires_grad_()
    theta = mu + F.softplus(rho) * eps
    energy = _loss_at(posterior, case, theta)
    energy = energy + kl_weight * _kl_terms(posterior, mu, rho, theta, log_prior)
    return torch.autograd.grad(energy, [mu, rho])


def closed_kl_gradients(posterior, case, eps, kl_weight, prior: TorchNormal):
    """d/d(mu, rho) of loss(theta) + w * KL[q || prior], the KL in closed form."""
    mu = posterior.mu.detach().clone().requires_grad_()
    rho = posterior.rho.detach().clone().requires_grad_()
    sigma = F.softplus(rho)
    kl = torch.distributions.kl_divergence(TorchNormal(mu, sigma), prior)
    for span in posterior.layout.fixed:
        kl = torch.cat([kl[: span.start], kl.new_zeros(span.stop - span.start), kl[span.stop :]])
    energy = _loss_at(posterior, case, mu + sigma * eps) + kl_weight * kl.sum()
    return torch.autograd.grad(energy, [mu, rho])


def sharpened_gradients(sharpened, case, eps, eps0, kl_weight, log_prior, *, exact):
    """d/d(mu, rho, eta) of the sharpened free energy, through the whole sampler.

    With exact=False, g_phi counts as a constant: the first-order method.
    """
    posterior, sigma0 = sharpened.posterior, sharpened.sigma0
    mu = posterior.mu.detach().clone().requires_grad_()
    rho = posterior.rho.detach().clone().requires_grad_()
    eta = sharpened.eta.clone().requires_grad_()
    phi = mu + F.softplus(rho) * eps
    inner = _loss_at(posterior, case, phi)
    (g_phi,) = torch.autograd.grad(inner, phi, create_graph=exact, retain_graph=True)
    theta = phi - eta * g_phi + sigma0 * eps0
    kl_theta = ((eta * g_phi) ** 2).sum() / (2 * sigma0**2)
    energy = _loss_at(posterior, case, theta) + sharpened.loss_scale * kl_theta
    energy = energy + kl_weight * _kl_terms(posterior, mu, rho, phi, log_prior)
    return torch.autograd.grad(energy, [mu, rho, eta])


def noise(posterior, generator):
    """The noise of the draw that the posterior would make with this generator; 0 for padding rows."""
    eps = torch.empty_like(posterior.rho.detach())
    kernel.normal_(eps, kernel.new_key(generator, eps.device))
    return posterior.layout.fill_fixed(eps)


def normal(sigma: float) -> TorchNormal:
    """N(0, sigma^2) in float64 (a plain number would become float32)."""
    scale = torch.tensor(sigma, dtype=torch.float64)
    return TorchNormal(torch.zeros_like(scale), scale)


def mixture_log_prob(pi, sigma1, sigma2):
    """log(pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)) per weight by logsumexp."""

    def log_prob(theta: Tensor) -> Tensor:
        first = math.log(pi) + normal(sigma1).log_prob(theta)
        second = math.log1p(-pi) + normal(sigma2).log_prob(theta)
        return torch.logaddexp(first, second)

    return log_prob


def row_mixture_log_prob(layout, pi, sigma1, sigma2):
    """The same with log-densities summed over each group before mixing."""

    def log_prob(theta: Tensor) -> Tensor:
        total = torch.zeros((), dtype=theta.dtype)
        for slot in layout:
            weights = theta[slot.span].view(slot.shape[0] if slot.shape else 1, -1)
            dim = 1 if slot.kind == "embedding" else 0
            first = math.log(pi) + normal(sigma1).log_prob(weights).sum(dim)
            second = math.log1p(-pi) + normal(sigma2).log_prob(weights).sum(dim)
            mixed = torch.logaddexp(first, second)
            keep = torch.ones_like(mixed, dtype=torch.bool)
            if slot.fixed_row is not None:
                keep[slot.fixed_row] = False
            total = total + mixed[keep].sum()
        return total

    return log_prob
