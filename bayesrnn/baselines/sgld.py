"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011; for RNNs, Gan et al., 2016).

With loss = total nats / M of a pass (M = N C at the scale of `Cuts`), SGD with step lr on
loss - log p(theta) / M, plus noise N(0, 2 lr / M), samples from the posterior as lr goes to 0. The
training loop clips the gradient of the loss, as for every method, which bends the drift while it clips.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def langevin_gradient(g: Tensor, theta: Tensor, prior_sigma: float, kl_weight: float) -> Tensor:
    """g + w * theta / prior_sigma^2: the loss and its share of -log N(theta | 0, prior_sigma^2)."""
    return g.add(theta, alpha=kl_weight / prior_sigma**2)


@torch.no_grad()
def langevin_noise_(
    theta: Tensor, lr: float, kl_weight: float, generator: Generator | None
) -> None:
    """Add N(0, 2 lr w) in place, after a step of lr; w = 1 / M is the posterior's temperature."""
    noise = torch.empty_like(theta).normal_(generator=generator)
    theta.add_(noise, alpha=(2 * lr * kl_weight) ** 0.5)
