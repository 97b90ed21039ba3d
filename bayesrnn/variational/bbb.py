"""Bayes by Backprop: from the gradient at a sample to the gradients of its distribution.

[F17, Alg. in Fig. 1 and Alg. 2], for the free energy  loss(theta) + w * (log q(theta) - log p(theta)).

`sigma_weight` is the weight w' of the KL in sigma's gradient; it is w, as in the paper, unless sigma's part
is tempered: then the updates are no longer those of the free energy.
"""

from __future__ import annotations

from torch import Tensor

from bayesrnn.variational.gaussian import sigmoid_rho


def gradients(
    g: Tensor,
    score: Tensor,
    eps: Tensor,
    sigma: Tensor,
    kl_weight: float | Tensor,
    sigma_weight: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """g_mu and g_rho from g, the gradient of the data loss at theta = mu + sigma * eps.

        g_mu  = g - w * score                                score = d log p(theta) / d theta
        g_rho = (g * eps - w' * (score * eps + 1 / sigma)) * sigmoid(rho)

    These are the paper's two updates after their log q terms cancel: along theta, log q has the
    gradient -eps / sigma, and along mu at fixed theta +eps / sigma; of sigma only -1/sigma is left.
    """
    sigma_weight = kl_weight if sigma_weight is None else sigma_weight
    g_mu = g - kl_weight * score
    g_sigma = g * eps - sigma_weight * (score * eps + 1 / sigma)
    return g_mu, g_sigma * sigmoid_rho(sigma)


def expected_gradients(
    g: Tensor,
    expected_score: tuple[Tensor, Tensor],
    eps: Tensor,
    sigma: Tensor,
    kl_weight: float | Tensor,
    sigma_weight: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for  loss(theta) + w * KL[q || p]  with the KL itself instead of its one-sample estimate.

        g_mu  = g - w * d E_q[log p] / d mu
        g_rho = (g * eps - w' * (d E_q[log p] / d sigma + 1 / sigma)) * sigmoid(rho)

    Equal to `gradients` on average over eps, without the noise that the prior's score has at a sample.
    """
    sigma_weight = kl_weight if sigma_weight is None else sigma_weight
    by_mu, by_sigma = expected_score
    g_mu = g - kl_weight * by_mu
    g_sigma = g * eps - sigma_weight * (by_sigma + 1 / sigma)
    return g_mu, g_sigma * sigmoid_rho(sigma)
