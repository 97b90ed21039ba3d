"""Every kind of module through the same checks."""

from __future__ import annotations

import copy

import pytest
import torch

import bayesrnn
from bayesrnn.variational.normal import VectorNormal
from tests import reference
from tests.contracts import Case

MIXTURE = {"pi": 0.25, "sigma1": 0.7, "sigma2": 0.05}
W = 0.03


class LogProbOnly:
    """A user's own prior; autograd gives its score."""

    def log_prob(self, theta):
        return -theta.abs().pow(1.5) - 0.1 * theta.cos()


def _log_prior(prior, posterior):
    """The prior as a plain function, written independently of the package where it can be."""
    if isinstance(prior, bayesrnn.ScaleMixture):
        return reference.mixture_log_prob(**MIXTURE)
    if isinstance(prior, bayesrnn.RowScaleMixture):
        return reference.row_mixture_log_prob(posterior.layout, **MIXTURE)
    if isinstance(prior, bayesrnn.EmpiricalNormal):
        return _empirical(posterior)
    if isinstance(prior, bayesrnn.Normal):
        return reference.normal(prior.sigma).log_prob
    return prior.log_prob


def _empirical(posterior):
    """N(0, s^2) with s^2 the mean of mu^2 + sigma^2 over each tensor, padding left out."""
    mu, sigma = posterior.mu.detach(), posterior.sigma
    scales = []
    for slot in posterior.layout:
        moment = (mu**2 + sigma**2)[slot.span].clone()
        keep = torch.ones_like(moment, dtype=torch.bool)
        if slot.fixed_span is not None:
            keep[slot.fixed_span.start - slot.offset : slot.fixed_span.stop - slot.offset] = False
        scales.append(moment[keep].mean().sqrt().expand(slot.size))
    scale = torch.cat(scales)
    return torch.distributions.Normal(torch.zeros_like(scale), scale).log_prob


PRIORS = {
    "empirical": bayesrnn.EmpiricalNormal(),
    "normal": bayesrnn.Normal(0.3),
    "mixture": bayesrnn.ScaleMixture(**MIXTURE),
    "rows": bayesrnn.RowScaleMixture(**MIXTURE),
    "own": LogProbOnly(),
    "torch": torch.distributions.Laplace(0.0, 0.2),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_gradients_are_those_of_autograd(case: Case, prior):
    oracle_model = copy.deepcopy(case.model)  # its own buffers: BatchNorm must see each pass once
    posterior = bayesrnn.Posterior(case.model, prior, sigma_init=0.2, kl_gradient="sampled")
    with posterior.sample(generator=torch.Generator().manual_seed(3)) as draw:
        case.closure().backward()
    eps = reference.noise(posterior, torch.Generator().manual_seed(3))
    torch.testing.assert_close(draw.eps, eps, rtol=1e-10, atol=1e-10)
    posterior.accumulate_grad(draw, kl_weight=W)

    posterior.model, log_prior = oracle_model, _log_prior(prior, posterior)
    g_mu, g_rho = reference.bbb_gradients(posterior, case, eps, W, log_prior)
    assert posterior.mu.grad is not None
    assert posterior.rho.grad is not None
    torch.testing.assert_close(posterior.mu.grad, g_mu, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(posterior.rho.grad, g_rho, rtol=1e-10, atol=1e-10)


def test_expected_gradients_are_those_of_the_closed_kl(case: Case):
    """With a normal prior the KL is closed, so autograd differentiates  loss(theta) + w KL  itself."""
    oracle_model = copy.deepcopy(case.model)
    posterior = bayesrnn.Posterior(
        case.model, bayesrnn.Normal(0.3), sigma_init=0.2, kl_gradient="expected"
    )
    with posterior.sample(generator=torch.Generator().manual_seed(3)) as draw:
        case.closure().backward()
    eps = reference.noise(posterior, torch.Generator().manual_seed(3))
    torch.testing.assert_close(draw.eps, eps, rtol=1e-10, atol=1e-10)
    posterior.accumulate_grad(draw, kl_weight=W)
    posterior.model = oracle_model
    g_mu, g_rho = reference.closed_kl_gradients(posterior, case, eps, W, reference.normal(0.3))
    torch.testing.assert_close(posterior.mu.grad, g_mu, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(posterior.rho.grad, g_rho, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("exact", [False, True], ids=["first-order", "exact"])
def test_sharpened_gradients_are_those_of_autograd_through_the_sampler(case: Case, exact):
    prior, oracle_model = bayesrnn.ScaleMixture(**MIXTURE), copy.deepcopy(case.model)
    posterior = bayesrnn.Posterior(case.model, prior, sigma_init=0.2, kl_gradient="sampled")
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=0.25, sigma0=0.05, exact=exact)
    with torch.no_grad():
        sharpened.kappa.copy_(torch.rand_like(sharpened.kappa))
    sharpened.backward(case.closure, kl_weight=W, generator=torch.Generator().manual_seed(3))

    generator = torch.Generator().manual_seed(3)
    eps, eps0 = reference.noise(posterior, generator), reference.noise(posterior, generator)
    posterior.model = oracle_model
    g_mu, g_rho, g_eta = reference.sharpened_gradients(
        sharpened, case, eps, eps0, W, _log_prior(prior, posterior), exact=exact
    )
    eta_unit = sharpened.sigma0**2 / sharpened.loss_scale
    torch.testing.assert_close(posterior.mu.grad, g_mu, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(posterior.rho.grad, g_rho, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(sharpened.kappa.grad / eta_unit, g_eta, rtol=1e-10, atol=1e-10)


def test_weights_do_not_change_inside_a_sample_and_differ_between_samples(case: Case):
    posterior = bayesrnn.Posterior(case.model, bayesrnn.Normal(1.0), sigma_init=0.2)
    with posterior.sample() as draw:
        before = [leaf.detach().clone() for leaf in draw.leaves]
        for _ in range(3):
            case.closure()
        first = case.closure().item()
        assert first == case.closure().item()
        after = [leaf.detach().clone() for leaf in draw.leaves]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with posterior.sample():
        assert case.closure().item() != first


def test_the_mean_is_back_after_an_exception_bit_for_bit(case: Case):
    posterior = bayesrnn.Posterior(case.model, bayesrnn.Normal(1.0), sigma_init=0.2)
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    with pytest.raises(KeyError), posterior.sample(), posterior.sample():
        raise KeyError
    with pytest.raises(KeyError), posterior.sample(), posterior.mean(), posterior.sample():
        raise KeyError
    after = case.model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_predict_changes_nothing(case: Case):
    posterior = bayesrnn.Posterior(case.model, bayesrnn.Normal(1.0), sigma_init=0.2)
    case.model.train()
    list(case.model.modules())[-1].eval()
    modes = [m.training for m in case.model.modules()]
    state = {k: v.clone() for k, v in posterior.state_dict().items()}
    random = torch.get_rng_state()

    def read(output):
        return output if isinstance(output, torch.Tensor) else output[0]

    prediction = bayesrnn.predict(posterior, *case.inputs, samples=3, read=read)
    assert prediction.mutual_information.max() > 0
    assert torch.equal(random, torch.get_rng_state())
    assert modes == [m.training for m in case.model.modules()]
    assert all(torch.equal(v, state[k]) for k, v in posterior.state_dict().items())
    assert all(p.grad is None for p in posterior.parameters())


def test_saving_and_loading_into_a_fresh_model_is_exact(case: Case, tmp_path):
    fresh = copy.deepcopy(case.model)
    posterior = bayesrnn.Posterior(case.model, bayesrnn.Normal(0.5), kl_gradient="expected")
    for parameter in fresh.parameters():
        parameter.data.normal_()
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.01)
    posterior.backward(case.closure, kl_weight=W)
    optimizer.step()
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = bayesrnn.Posterior.load(tmp_path / "posterior.safetensors", fresh)
    assert loaded.prior == posterior.prior
    assert loaded.kl_gradient == "expected"
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in posterior.state_dict().items())
    case.model.eval()
    fresh.eval()
    assert torch.equal(case.closure(), Case(fresh, case.inputs).closure())


def test_the_model_trains_as_an_ordinary_one_when_kl_and_noise_vanish(case: Case):
    """With sigma near 0 and no KL, one SGD step is the plain model's step."""
    plain = copy.deepcopy(case)
    plain.closure().backward()
    with torch.no_grad():
        for parameter in plain.model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    posterior = bayesrnn.Posterior(case.model, bayesrnn.Normal(1.0), sigma_init=1e-14)
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1)
    posterior.backward(case.closure, kl_weight=0.0)
    optimizer.step()
    posterior.weights.release()
    for ours, theirs in zip(case.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "prior", [bayesrnn.EmpiricalNormal("tensor"), bayesrnn.EmpiricalNormal("model")]
)
def test_the_empirical_scale_is_where_the_kl_is_least(case: Case, prior):
    posterior = bayesrnn.Posterior(case.model, prior, sigma_init=0.3)
    best = posterior.kl()
    [(_, fitted)] = posterior.prior_parts()
    sigma = posterior.sigma.clamp_min(1e-300)
    for factor in (0.9, 1.1):
        other = VectorNormal(fitted.stddev * factor)
        terms = -other.expected_log_prob(posterior.mu.detach(), sigma)
        best_terms = -fitted.expected_log_prob(posterior.mu.detach(), sigma)
        for span in posterior.layout.fixed:
            terms[span] = best_terms[span] = 0
        assert terms.sum() > best_terms.sum()
    assert best > 0
