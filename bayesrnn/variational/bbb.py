"""Bayes by Backprop: from the gradient at a sample to the gradients of its distribution.

[F17, Alg. in Fig. 1 and Alg. 2], for the free energy  loss(theta) + w * (log q(theta) - log p(theta)).
"""

from __future__ import annotations

from torch import Tensor

from bayesrnn.variational.gaussian import sigmoid_rho


def gradients(
    g: Tensor, score: Tensor, eps: Tensor, sigma: Tensor, kl_weight: float
) -> tuple[Tensor, Tensor]:
    """g_mu and g_rho from g, the gradient of the data loss at theta = mu + sigma * eps.

        g_mu  = g - w * score                                score = d log p(theta) / d theta
        g_rho = (g_mu * eps - w / sigma) * sigmoid(rho)

    These are the paper's two updates after their log q terms cancel: along theta, log q has the
    gradient -eps / sigma, and along mu at fixed theta +eps / sigma; of sigma only -1/sigma is left.
    """
    g_mu = g.sub(score, alpha=kl_weight)
    g_sigma = (g_mu * eps).sub_(kl_weight / sigma)
    return g_mu, g_sigma.mul_(sigmoid_rho(sigma))
