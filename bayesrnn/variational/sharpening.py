"""Posterior sharpening: the gradient of a minibatch moves the posterior towards it [F17, sec. 4].

    phi ~ q(phi);   theta = phi - eta * g_phi + sigma0 * eps0;   p(theta | phi) = N(phi, sigma0^2)

The data loss is `loss_scale` times the minibatch's total nats, so that is also the weight of
KL_theta = KL[q(theta | phi, (x, y)) || p(theta | phi)], which each minibatch pays in full.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sharpen(phi: Tensor, g_phi: Tensor, eta: Tensor, sigma0: float, eps0: Tensor) -> Tensor:
    """theta ~ N(phi - eta * g_phi, sigma0^2) [F17, eq. for q(theta | phi, (x, y))]."""
    return centre(phi, g_phi, eta).add_(eps0, alpha=sigma0)


def centre(phi: Tensor, g_phi: Tensor, eta: Tensor) -> Tensor:
    """The mean of q(theta | phi, (x, y)): phi - eta * g_phi."""
    return torch.addcmul(phi, eta, g_phi, value=-1)


def kl_theta(g_phi: Tensor, eta: Tensor, sigma0: float) -> Tensor:
    """KL[q(theta | phi, (x, y)) || p(theta | phi)] = sum((eta * g_phi)^2) / (2 sigma0^2), in nats."""
    step = eta * g_phi
    step = step.to(torch.promote_types(step.dtype, torch.float32))  # small squares are many
    return step.square().sum() / (2 * sigma0**2)


def eta_gradient(
    g_theta: Tensor, g_phi: Tensor, eta: Tensor, sigma0: float, loss_scale: float
) -> Tensor:
    """g_eta = -g_theta * g_phi + loss_scale * eta * g_phi^2 / sigma0^2."""
    return (eta * g_phi).mul_(loss_scale / sigma0**2).sub_(g_theta).mul_(g_phi)


def hessian_direction(
    g_theta: Tensor, g_phi: Tensor, eta: Tensor, sigma0: float, loss_scale: float
) -> Tensor:
    """u such that the whole gradient of phi is g_theta + H u, H the Hessian of the loss at phi.

        u = -eta * g_theta + loss_scale * eta^2 * g_phi / sigma0^2

    u is what reaches g_phi when the loss is differentiated through theta and through KL_theta. The
    first-order method takes u = 0.
    """
    return (eta * g_phi).mul_(loss_scale / sigma0**2).sub_(g_theta).mul_(eta)
