"""Problems whose answer is known: linear regression and a quadratic loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bayesrnn


def test_linear_regression_recovers_the_diagonal_optimum():
    """The mean-field optimum: the exact posterior's mean, and the inverse of its precision's diagonal."""
    torch.manual_seed(1)
    noise, prior_sigma, n = 0.5, 0.8, 60
    x = torch.randn(n, 4).double() @ torch.randn(4, 4).double()
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]).double() + noise * torch.randn(n).double()
    precision = x.T @ x / noise**2 + torch.eye(4).double() / prior_sigma**2
    exact_mean = torch.linalg.solve(precision, x.T @ y / noise**2)
    exact_sigma = precision.diagonal().rsqrt()

    model = nn.Linear(4, 1, bias=False).double()
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(prior_sigma), sigma_init=0.1)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9997)
    generator = torch.Generator().manual_seed(0)
    averaged_mu, averaged_sigma, steps = 0, 0, 16_000
    for step in range(steps):
        optimizer.zero_grad()
        posterior.backward(
            lambda: (model(x).squeeze() - y).square().sum() / (2 * noise**2),
            kl_weight=1.0,
            generator=generator,
        )
        optimizer.step()
        schedule.step()
        if step >= steps // 2:
            averaged_mu += posterior.mu.detach() / (steps // 2)
            averaged_sigma += posterior.sigma / (steps // 2)
    assert ((averaged_mu - exact_mean).abs() < 0.05 * exact_sigma).all()
    torch.testing.assert_close(averaged_sigma, exact_sigma, rtol=0.03, atol=0)


class Theta(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(value)


def _quadratic():
    """loss = (theta - a)' A (theta - a) / 2, A not diagonal."""
    torch.manual_seed(2)
    root = torch.randn(3, 3).double()
    a_matrix, centre = root @ root.T, torch.randn(3).double()
    model = Theta(torch.randn(3).double())

    def loss():
        difference = model.theta - centre
        return difference @ a_matrix @ difference / 2

    return model, loss, a_matrix, centre


def test_the_expected_kl_gradient_is_the_average_of_the_sampled_one_and_far_less_noisy():
    """The mixture's, on weights started around its narrow component: mean and length."""
    weights, draws = 500, 3000
    model = Theta(torch.linspace(-0.04, 0.04, weights).double())
    prior = bayesrnn.ScaleMixture(0.75, math.exp(-1), math.exp(-6))
    sampled = bayesrnn.Posterior(model, prior, sigma_init=0.02, kl_gradient="sampled")
    expected = bayesrnn.Posterior(
        Theta(model.theta.detach().clone()), prior, sigma_init=0.02, kl_gradient="expected"
    )
    generator = torch.Generator().manual_seed(6)
    estimates = []
    for _ in range(draws):
        sampled.mu.grad = sampled.rho.grad = None
        draw = sampled.draw(generator=generator)
        sampled.accumulate_grad(draw, kl_weight=1.0, g=torch.zeros_like(draw.theta))
        estimates.append(torch.cat([sampled.mu.grad, sampled.rho.grad]))
    drawn = torch.stack(estimates)
    draw = expected.draw()
    expected.accumulate_grad(draw, kl_weight=1.0, g=torch.zeros_like(draw.theta))
    right = torch.cat([expected.mu.grad, expected.rho.grad])
    z = (drawn.mean(0) - right) / (drawn.std(0) / math.sqrt(draws))
    assert z.abs().max() < 4.5  # of 1,000 z-scores
    assert z.square().mean() < 1.2
    assert right[:weights].norm() < 0.2 * drawn[:, :weights].norm(dim=1).mean()


@pytest.mark.parametrize("kl_gradient", ["sampled", "expected"])
@pytest.mark.parametrize("prior_sigma", [0.3, 2.0])
def test_estimators_are_unbiased(prior_sigma, kl_gradient):
    """z-scores of the averaged estimates against the free energy's exact gradients."""
    model, loss, a_matrix, centre = _quadratic()
    posterior = bayesrnn.Posterior(
        model, bayesrnn.Normal(prior_sigma), sigma_init=0.4, kl_gradient=kl_gradient
    )
    mu, sigma, w = posterior.mu.detach().clone(), posterior.sigma, 0.7
    right_mu = a_matrix @ (mu - centre) + w * mu / prior_sigma**2
    right_sigma = a_matrix.diagonal() * sigma + w * (sigma / prior_sigma**2 - 1 / sigma)
    right_rho = right_sigma * posterior.rho.detach().sigmoid()

    generator = torch.Generator().manual_seed(5)
    estimates, kls = [], []
    for _ in range(4000):
        posterior.mu.grad = posterior.rho.grad = None
        with posterior.sample(generator=generator) as draw:
            loss().backward()
        kls.append(posterior.kl(draw))
        posterior.accumulate_grad(draw, kl_weight=w)
        estimates.append(torch.cat([posterior.mu.grad, posterior.rho.grad]))
    right = torch.cat([right_mu, right_rho, posterior.kl()[None]])
    drawn = torch.cat([torch.stack(estimates), torch.stack(kls)[:, None]], dim=1)
    z = (drawn.mean(0) - right) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert z.abs().max() < 4, z


def test_the_mixture_kl_estimate_is_unbiased():
    model, *_ = _quadratic()
    posterior = bayesrnn.Posterior(model, bayesrnn.ScaleMixture(0.25, 1.0, 0.02), sigma_init=0.1)
    generator = torch.Generator().manual_seed(6)
    drawn = torch.stack([posterior.kl(posterior.draw(generator=generator)) for _ in range(6000)])
    z = (drawn.mean() - posterior.kl()) / (drawn.std() / math.sqrt(len(drawn)))
    assert abs(z) < 4


def test_sharpening_finds_the_best_step():
    """Where the loss is linear, the free energy is least at eta = sigma0^2 / loss_scale: kappa = 1."""
    slope = torch.tensor([1.0, -3.0, 0.2]).double()
    model = Theta(torch.zeros(3).double())
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(1.0), sigma_init=0.1)
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=0.05, kappa_init=0.2)
    optimizer = torch.optim.SGD([sharpened.kappa], lr=20.0)
    for _ in range(2000):
        optimizer.zero_grad()
        sharpened.backward(lambda: model.theta @ slope, kl_weight=0.0)
        optimizer.step()
    torch.testing.assert_close(
        sharpened.kappa.detach()[:2], torch.ones(2).double(), rtol=1e-3, atol=0
    )


def test_sharpened_bound_is_never_below_the_best_achievable_nats():
    """nats(theta) + KL_theta >= -log of the integral of p(x | theta) p(theta | phi), here in closed form."""
    torch.manual_seed(3)
    y, noise, sigma0 = torch.randn(6).double(), 0.3, 0.2
    model = Theta(torch.zeros(1).double())
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(1.0), sigma_init=0.1)
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=1.0, sigma0=sigma0, kappa_init=0.3)
    phi = model.theta.item()
    covariance = noise**2 * torch.eye(6).double() + sigma0**2
    marginal = torch.distributions.MultivariateNormal(torch.full((6,), phi).double(), covariance)
    evidence = -marginal.log_prob(y).item()

    def nats():
        return -torch.distributions.Normal(model.theta, noise).log_prob(y).sum()

    generator = torch.Generator().manual_seed(0)
    bounds = torch.tensor(
        [
            (b := sharpened.bound(nats, generator=generator)).value.item() + b.kl_theta.item()
            for _ in range(800)
        ]
    )
    standard_error = bounds.std().item() / math.sqrt(len(bounds))
    assert bounds.mean().item() > evidence - 3 * standard_error
    assert model.theta.item() == phi
