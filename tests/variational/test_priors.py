"""Scores, densities and exact KLs against numerical integration and high-precision arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import bayesrnn
from bayesrnn.variational import gaussian, priors
from bayesrnn.weights.layout import Layout, Slot
from tests import reference

MIXTURES = [
    bayesrnn.ScaleMixture(0.25, math.exp(-1), math.exp(-7)),  # the authors' script
    bayesrnn.ScaleMixture(0.75, 1.0, math.exp(-8)),
    bayesrnn.ScaleMixture(0.5, math.exp(-2), math.exp(-6)),
    bayesrnn.ScaleMixture(0.9, 0.01, 0.5),  # the narrow component first
    bayesrnn.ScaleMixture(0.3, 0.4, 0.4),  # both the same
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixture_is_right_and_finite_into_the_far_tails(mixture, dtype):
    size = torch.logspace(-8, 3, 4001, dtype=torch.float64)
    theta = torch.cat([-size, torch.zeros(1, dtype=torch.float64), size]).to(dtype)
    exact = theta.double().requires_grad_()
    log_prob = reference.mixture_log_prob(mixture.pi, mixture.sigma1, mixture.sigma2)(exact)
    (score,) = torch.autograd.grad(log_prob.sum(), exact)

    rtol = 1e-4 if dtype == torch.float32 else 1e-11
    ours = mixture.score(theta).double()
    torch.testing.assert_close(ours, score, rtol=rtol, atol=0)
    ours = mixture.log_prob(theta).double()
    torch.testing.assert_close(ours, log_prob.detach(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("mixture", MIXTURES, ids=str)
def test_mixture_kl_is_the_integral(mixture):
    log_p = reference.mixture_log_prob(mixture.pi, mixture.sigma1, mixture.sigma2)
    means = [0.0, 1e-8, 3e-4, 5e-3, 0.05, -0.3, 2.0, 1e3]
    sigmas = [1e-8, 1e-5, 1e-3, 0.02, 0.1, 1.0, 30.0]
    for mu in means:
        for sigma in sigmas:
            m, s = torch.tensor([mu]).double(), torch.tensor([sigma]).double()
            ours = (-gaussian.entropy(s) - priors.expected_log_prob(mixture, m, s)).item()
            right = _integrated_kl(log_p, mu, sigma)
            assert ours == pytest.approx(right, rel=1e-7, abs=1e-7), (mu, sigma)


def _integrated_kl(log_p, mu, sigma):
    """KL by brute force: 40 nodes on each of some 400 pieces, finest where the mixture bends."""
    bends = np.geomspace(1e-6, 10.0, 150)
    in_z = (np.concatenate([-bends, [0.0], bends]) - mu) / sigma
    edges = np.unique(np.concatenate([np.linspace(-12, 12, 100), in_z[abs(in_z) < 12]]))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    z = edges[:-1, None] + half * (1 + nodes)
    log_q = -0.5 * z**2 - math.log(sigma) - gaussian.LOG_SQRT_2PI
    difference = log_q - log_p(torch.from_numpy(mu + sigma * z)).numpy()
    return float((half * weights * sigma * np.exp(log_q) * difference).sum())


GRID = [
    bayesrnn.ScaleMixture(pi, math.exp(log_sigma1), math.exp(log_sigma2))
    for pi, log_sigma1, log_sigma2 in [
        (0.25, -1, -7),
        (0.75, -1, -6),
        (0.25, 0, -8),
        (0.75, -2, -6),
    ]
]


@pytest.mark.parametrize("mixture", [*GRID, *MIXTURES[3:]], ids=str)
@pytest.mark.parametrize(
    ("widths", "slope_error", "curvature_error"),
    [(0.3, 0.06, 0.15), (1.0, 0.01, 0.03), (8.0, 0.01, 0.01), (60.0, 0.01, 0.01)],
)
def test_expected_score_is_the_derivative_of_the_expectation(
    mixture, widths, slope_error, curvature_error
):
    """For q from a third of the narrow component's width to sixty times it."""
    narrow = min(mixture.sigma1, mixture.sigma2)
    size = torch.logspace(-2, 2.5, 400, dtype=torch.float64) * narrow
    mu = torch.cat([-size, torch.zeros(1, dtype=torch.float64), size])
    sigma = torch.full_like(mu, widths * narrow)
    h = 1e-4 * narrow

    def expected(m, s):
        return mixture.expected_log_prob(m, s)

    right_mu = (expected(mu + h, sigma) - expected(mu - h, sigma)) / (2 * h)
    right_sigma = (expected(mu, sigma + h) - expected(mu, sigma - h)) / (2 * h)
    for dtype in (torch.float64, torch.float32):
        by_mu, by_sigma = mixture.expected_score(mu.to(dtype), sigma.to(dtype))
        assert (by_mu - right_mu).abs().max() < slope_error * right_mu.abs().max()
        assert (by_sigma - right_sigma).abs().max() < curvature_error * right_sigma.abs().max()


@pytest.mark.parametrize("mixture", GRID, ids=str)
def test_expected_score_in_half_precision(mixture):
    """Against differences of the integral in float64, within the fit's 3% and bfloat16's rounding."""
    narrow = min(mixture.sigma1, mixture.sigma2)
    mu = torch.linspace(-6 * narrow, 6 * narrow, 301).bfloat16()
    sigma = torch.full_like(mu, 0.3 * narrow)
    m, s, h = mu.double(), sigma.double(), 1e-4 * narrow
    expected = mixture.expected_log_prob
    right = (
        (expected(m + h, s) - expected(m - h, s)) / (2 * h),
        (expected(m, s + h) - expected(m, s - h)) / (2 * h),
    )
    for ours, exact, error in zip(
        mixture.expected_score(mu, sigma), right, (0.05, 0.2), strict=True
    ):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - exact).abs().max() < error * exact.abs().max()


@pytest.mark.parametrize("mixture", GRID, ids=str)
def test_expected_score_is_smooth_and_finite_everywhere(mixture):
    mu = torch.tensor([0.0, 1e-30, 1e-4, 0.05, 3.0, 1e3, -1e3])
    for sigma in (1e-30, 1e-8, 1e-3, 1.0, 1e3):
        by_mu, by_sigma = mixture.expected_score(mu, torch.full_like(mu, sigma))
        assert torch.isfinite(by_mu).all()
        assert torch.isfinite(by_sigma).all()
        assert by_mu[0] == 0
        torch.testing.assert_close(by_mu[-1], -by_mu[-2])


@pytest.mark.parametrize(("wide", "narrow"), [(1.0, 1e-3), (1.0, 1e-6), (1e3, 1e-5)])
def test_far_from_the_narrow_component_only_the_wide_one_is_left(wide, narrow):
    mu = torch.tensor([0.5, 1.0], dtype=torch.float64)
    sigma = torch.full_like(mu, narrow)
    mixture = bayesrnn.ScaleMixture(0.5, wide, narrow)
    for found, weights in zip(mixture.expected_score(mu, sigma), (mu, sigma), strict=True):
        torch.testing.assert_close(found, -weights / wide**2, rtol=1e-5, atol=0)


def test_the_score_is_finite_in_float16():
    theta = torch.linspace(-0.02, 0.02, 101).half()
    mixture = bayesrnn.ScaleMixture(0.25, 1.0, math.exp(-6))
    found = mixture.score(theta)
    assert found.dtype == torch.float16
    exact = theta.double().requires_grad_()
    log_prob = reference.mixture_log_prob(0.25, 1.0, math.exp(-6))(exact)
    (right,) = torch.autograd.grad(log_prob.sum(), exact)
    torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)


def test_gauss_hermite_would_miss_the_spike():
    """Why the mixture has a quadrature of its own: the generic one errs by a fifth of a nat."""
    mixture = MIXTURES[0]

    class Generic:
        log_prob = staticmethod(mixture.log_prob)

    mu, sigma = torch.tensor([0.03]).double(), torch.tensor([0.1]).double()
    right = mixture.expected_log_prob(mu, sigma)
    generic = priors.expected_log_prob(Generic(), mu, sigma)
    assert 0.05 < (generic - right).abs() < 1


def test_generic_quadrature_is_exact_for_a_polynomial_log_density():
    class Quartic:
        def log_prob(self, theta):
            return -(theta**4)

    mu, sigma = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.3, 2.0]).double()
    fourth_moment = mu**4 + 6 * mu**2 * sigma**2 + 3 * sigma**4
    torch.testing.assert_close(priors.expected_log_prob(Quartic(), mu, sigma), -fourth_moment)


def test_normal_kl_is_that_of_torch_distributions():
    mu, sigma = torch.randn(9).double(), torch.rand(9).double() + 0.1
    ours = -gaussian.entropy(sigma) - bayesrnn.Normal(0.3).expected_log_prob(mu, sigma)
    q = torch.distributions.Normal(mu, sigma)
    torch.testing.assert_close(ours, torch.distributions.kl_divergence(q, reference.normal(0.3)))


def test_row_mixture_has_one_choice_for_each_group():
    layout = Layout(
        (Slot("w", (3, 2), 0), Slot("e", (4, 2), 6, "embedding", 1), Slot("b", (3,), 14))
    )
    prior = bayesrnn.RowScaleMixture(0.25, 0.5, 0.01).bind(layout)
    theta = (0.05 * torch.randn(layout.size)).double().requires_grad_()
    log_prob = prior.log_prob(theta)
    assert log_prob.shape == (2 + 4 + 1,)  # columns of w, rows of e, the whole of b
    assert log_prob[3] == 0  # the padding row
    right = reference.row_mixture_log_prob(layout, 0.25, 0.5, 0.01)(theta)
    torch.testing.assert_close(log_prob.sum(), right)
    (score,) = torch.autograd.grad(right, theta)
    ours = prior.score(theta.detach())
    ours[layout.fixed[0]] = 0
    torch.testing.assert_close(ours, score)


def test_row_mixture_has_no_exact_kl_and_says_what_to_do():
    posterior = bayesrnn.Posterior(torch.nn.Linear(3, 2), bayesrnn.RowScaleMixture(0.5, 1.0, 0.1))
    with pytest.raises(ValueError, match=r"use kl\(draw\)"):
        posterior.kl()
    with posterior.sample() as draw:
        assert torch.isfinite(posterior.kl(draw))


@pytest.mark.parametrize(
    "prior",
    [*MIXTURES, bayesrnn.Normal(0.1), bayesrnn.EmpiricalNormal("model")],
    ids=str,
)
def test_config_round_trip(prior):
    assert priors.from_config(priors.to_config(prior)) == prior


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bayesrnn.Normal(0.0), "sigma=0.0 must be a positive"),
        (lambda: bayesrnn.Normal(math.inf), "sigma=inf"),
        (lambda: bayesrnn.ScaleMixture(0.0, 1, 0.1), "pi=0.0 must lie strictly between"),
        (lambda: bayesrnn.ScaleMixture(1.0, 1, 0.1), "pi=1.0"),
        (lambda: bayesrnn.ScaleMixture(math.nan, 1, 0.1), "pi=nan"),
        (lambda: bayesrnn.ScaleMixture(0.5, -1, 0.1), "sigma1=-1"),
        (lambda: bayesrnn.RowScaleMixture(0.5, 1, 0), "RowScaleMixture: sigma2=0"),
        (lambda: bayesrnn.EmpiricalNormal("layer"), "use 'tensor' or 'model'"),  # type: ignore[arg-type]
        (lambda: priors.from_config({"name": "Cauchy"}), "unknown prior 'Cauchy'"),
        (lambda: priors.from_config({"name": "Normal", "mu": 1}), "cannot be made from"),
    ],
)
def test_bad_hyper_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("narrow", [1e-6, 1e-12, 1e-15])
def test_a_very_narrow_component_is_nothing_far_away(narrow):
    prior = bayesrnn.ScaleMixture(0.5, 1.0, narrow)
    theta, sigma = torch.tensor([0.5, -0.01]), torch.tensor([1e-3, 1e-5])
    torch.testing.assert_close(prior.score(theta), -theta)
    by_mu, by_sigma = prior.expected_score(theta, sigma)
    torch.testing.assert_close(by_mu, -theta)
    torch.testing.assert_close(by_sigma, -sigma)
