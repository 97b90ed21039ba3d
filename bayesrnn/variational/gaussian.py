"""The variational posterior q(theta) = N(mu, diag(sigma^2)), sigma = softplus(rho) [F17, sec. 2]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrnn.variational import elementary

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def sigma_from_rho(rho: Tensor) -> Tensor:
    """sigma = softplus(rho) = log(1 + exp(rho)), kept above the smallest normal number.

    Below it sigma would be denormal or zero: slow, and 1/sigma infinite.
    """
    return elementary.softplus(rho)


def rho_from_sigma(sigma: Tensor) -> Tensor:
    """rho = log(exp(sigma) - 1), written so that neither end overflows."""
    return sigma + torch.log(-torch.expm1(-sigma))


def sigmoid_rho(sigma: Tensor) -> Tensor:
    """d sigma / d rho = sigmoid(rho) = 1 - exp(-sigma), accurate for tiny sigma too."""
    return elementary.one_minus_exp(sigma)


def reparameterise(mu: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
    """theta = mu + sigma * eps [F17, Alg. in Fig. 1, line 1]."""
    return torch.addcmul(mu, sigma, eps)


def noise_at(theta: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """eps, such that theta = mu + sigma * eps: the noise that theta has, after all rounding."""
    return (theta - mu) * (1 / sigma)


def log_prob_at_noise(sigma: Tensor, eps: Tensor) -> Tensor:
    """log q(theta) per weight at theta = mu + sigma * eps; mu drops out."""
    return -0.5 * eps.square() - sigma.log() - LOG_SQRT_2PI


def entropy(sigma: Tensor) -> Tensor:
    """-E_q[log q] per weight, in nats."""
    return sigma.log() + (0.5 + LOG_SQRT_2PI)


def signal_to_noise(mu: Tensor, sigma: Tensor) -> Tensor:
    """|mu| / sigma, the order in which weights are worth keeping [F17, sec. 5.1]."""
    return mu.abs() / sigma
