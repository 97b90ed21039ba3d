"""Priors around given weights, and another prior for each group of weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Normal as TorchNormal

import bayesrnn
from bayesrnn import init
from tests import reference
from tests.contracts import make_case


@pytest.fixture
def case():
    return make_case("padded-embedding")


def _moved(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor + 0.3 for name, tensor in model.state_dict().items()}


def _prior_vectors(posterior, weights, sigma):
    mean = torch.cat([weights[slot.name].flatten() for slot in posterior.layout])
    if isinstance(sigma, float):
        return TorchNormal(mean, torch.full_like(mean, sigma))
    return TorchNormal(mean, torch.cat([sigma[slot.name].flatten() for slot in posterior.layout]))


# ---------------------------------------------------------------------- centred


@pytest.mark.parametrize("width", ["one", "by weight"])
@pytest.mark.parametrize("kl_gradient", ["expected", "sampled"])
def test_a_centred_prior_has_the_gradients_of_its_density(case, width, kl_gradient):
    weights = _moved(case.model)
    sigma = 0.2 if width == "one" else {n: 0.1 + t.abs() for n, t in weights.items()}
    prior = bayesrnn.Centred(weights, sigma)
    posterior = bayesrnn.Posterior(case.model, prior, sigma_init=0.3, kl_gradient=kl_gradient)
    oracle = _prior_vectors(posterior, weights, sigma)
    generator = torch.Generator().manual_seed(3)
    eps = reference.noise(posterior, torch.Generator().manual_seed(3))
    posterior.backward(case.closure, kl_weight=0.7, generator=generator)
    if kl_gradient == "expected":
        expected = reference.closed_kl_gradients(posterior, case, eps, 0.7, oracle)
    else:
        expected = reference.bbb_gradients(posterior, case, eps, 0.7, oracle.log_prob)
    torch.testing.assert_close(posterior.mu.grad, expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.rho.grad, expected[1], rtol=1e-9, atol=1e-9)
    q = TorchNormal(posterior.mu.detach(), 0.3)
    each = posterior.layout.fill_fixed(torch.distributions.kl_divergence(q, oracle))
    torch.testing.assert_close(posterior.kl(), each.sum())


def test_the_given_weights_are_copied_and_follow_nothing():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    prior = bayesrnn.Centred(model, 0.1)
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(prior.weights["weight"], before)
    posterior = bayesrnn.Posterior(model, prior)
    [(_, bound)] = posterior.prior_parts()
    assert torch.equal(bound.mean[:6], before.flatten())


def test_what_was_learnt_becomes_the_prior():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    posterior = bayesrnn.Posterior(model, bayesrnn.ScaleMixture(0.5, 1.0, 0.01), sigma_init=0.2)
    assert posterior.kl() > 1
    posterior.prior = posterior.as_prior()
    assert posterior.kl().abs() < 1e-5
    posterior.backward(lambda: 0 * model(torch.ones(1, 3)).sum(), kl_weight=1.0)
    # At the prior itself the KL has no slope.
    torch.testing.assert_close(posterior.mu.grad, torch.zeros(8))
    torch.testing.assert_close(posterior.rho.grad, torch.zeros(8), atol=1e-5, rtol=0)
    with torch.no_grad():
        posterior.mu.add_(0.2)  # one standard deviation: half a nat a weight
    assert posterior.kl().item() == pytest.approx(8 * 0.5, rel=1e-4)


def test_a_prior_that_cannot_be_used_leaves_the_old_one():
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    with pytest.raises(ValueError, match="the weights have no 'bias', which is Bayesian"):
        posterior.prior = bayesrnn.Centred({"weight": torch.zeros(2, 3)}, 1.0)
    with pytest.raises(ValueError, match=r"'weight' has shape \(3, 2\).*the model has \(2, 3\)"):
        posterior.prior = bayesrnn.Centred(
            {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, 1.0
        )
    with pytest.raises(ValueError, match="give its parameters"):
        posterior.prior = bayesrnn.Normal
    assert posterior.prior == bayesrnn.Normal(1.0)
    for sigma in (0.0, -1.0, float("nan"), {"weight": torch.zeros(2, 3)}):
        with pytest.raises(ValueError, match="must be .*positive"):
            bayesrnn.Centred(posterior.model, sigma)
    with pytest.raises(ValueError, match="give a module or its state_dict"):
        bayesrnn.Centred([1.0], 0.1)  # pyright: ignore


# ---------------------------------------------------------------------- groups


def test_each_group_has_its_prior(case):
    prior = bayesrnn.Grouped(
        {"embedding.*": bayesrnn.RowScaleMixture(0.5, 1.0, 0.1), "*": bayesrnn.Normal(0.4)}
    )
    posterior = bayesrnn.Posterior(case.model, prior, sigma_init=0.3)
    assert posterior.kl_gradient == "sampled"  # the first has no expected score
    rows = posterior.layout.part(posterior.layout.slots[:1])
    by_row = reference.row_mixture_log_prob(rows, 0.5, 1.0, 0.1)
    normal = reference.normal(0.4)

    def log_prior(theta):
        return by_row(theta[: rows.size]) + normal.log_prob(theta[rows.size :]).sum()

    eps = reference.noise(posterior, torch.Generator().manual_seed(3))
    draw = posterior.draw(generator=torch.Generator().manual_seed(3))
    q = TorchNormal(posterior.mu.detach(), posterior.draw().sigma)
    log_q = posterior.layout.fill_fixed(q.log_prob(draw.theta)).sum()
    torch.testing.assert_close(posterior.kl(draw), log_q - log_prior(draw.theta))
    posterior.backward(case.closure, kl_weight=0.7, generator=torch.Generator().manual_seed(3))
    expected = reference.bbb_gradients(posterior, case, eps, 0.7, log_prior)
    torch.testing.assert_close(posterior.mu.grad, expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.rho.grad, expected[1], rtol=1e-9, atol=1e-9)


def test_groups_are_the_sum_of_their_parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    groups = {
        "1.*": bayesrnn.EmpiricalNormal(),
        "*.bias": bayesrnn.Normal(2.0),
        "*": bayesrnn.ScaleMixture(0.5, 1.0, 0.1),
    }
    posterior = bayesrnn.Posterior(model, bayesrnn.Grouped(groups), sigma_init=0.2)
    assert posterior.kl_gradient == "expected"
    each = posterior.named(posterior.kl_per_weight())
    for slot in posterior.layout:
        pattern = "1.*" if slot.name[0] == "1" else "*.bias" if "bias" in slot.name else "*"
        alone = bayesrnn.Posterior(
            nn.ParameterDict({"w": posterior.named(posterior.mu.detach())[slot.name]}),
            groups[pattern],
            sigma_init=0.2,
        )
        torch.testing.assert_close(each[slot.name].sum(), alone.kl())


def test_a_sigma_from_the_prior_is_that_of_the_group():
    groups = {
        "weight": bayesrnn.Normal(8.0),
        "bias": bayesrnn.Centred({"bias": torch.ones(2)}, 0.1),
    }
    posterior = bayesrnn.Posterior(
        nn.Linear(3, 2), bayesrnn.Grouped(groups), sigma_init=init.from_prior()
    )
    sigma = posterior.named(posterior.sigma)
    assert ((sigma["weight"] >= 4 - 1e-4) & (sigma["weight"] <= 8 + 1e-4)).all()
    assert ((sigma["bias"] >= 0.05 - 1e-4) & (sigma["bias"] <= 0.1 + 1e-4)).all()


def test_groups_that_do_not_fit_the_model():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    normal = bayesrnn.Normal(1.0)
    with pytest.raises(ValueError, match="no pattern matches '1.weight'"):
        bayesrnn.Posterior(model, bayesrnn.Grouped({"0.*": normal}))
    with pytest.raises(ValueError, match="'lstm.*' is the first match of none"):
        bayesrnn.Posterior(model, bayesrnn.Grouped({"lstm.*": normal, "*": normal}))
    shared = bayesrnn.EmpiricalNormal("model")
    with pytest.raises(ValueError, match="do not lie together"):
        bayesrnn.Posterior(model, bayesrnn.Grouped({"*.weight": shared, "*": normal}))
    with pytest.raises(ValueError, match="'a' is 3, which has no log_prob"):
        bayesrnn.Grouped({"a": 3})
    with pytest.raises(ValueError, match="'a' has Grouped.*, which is no single prior"):
        bayesrnn.Grouped({"a": bayesrnn.Grouped({"*": normal})})
    with pytest.raises(ValueError, match="give priors by name pattern"):
        bayesrnn.Grouped({})
    assert isinstance(model[0].weight, nn.Parameter)  # nothing was touched


# ---------------------------------------------------------------------- files


def _priors(model):
    return {
        "centred": bayesrnn.Centred(_moved(model), 0.2),
        "earlier posterior": bayesrnn.Centred(_moved(model), _widths(model)),
        "groups": bayesrnn.Grouped(
            {"0.*": bayesrnn.Centred(_moved(model), 0.2), "*": bayesrnn.Normal(0.3)}
        ),
    }


def _widths(model):
    return {name: 0.1 + tensor.abs() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("which", ["centred", "earlier posterior", "groups"])
@pytest.mark.parametrize("sharpened", [False, True])
def test_a_file_has_the_prior_with_its_weights(which, sharpened, tmp_path):
    def fresh():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    posterior = bayesrnn.Posterior(fresh(), _priors(fresh())[which])
    kl, path = posterior.kl(), tmp_path / "p.safetensors"
    if sharpened:
        bayesrnn.Sharpened(posterior, loss_scale=1.0).save(path)
        again = bayesrnn.Sharpened.load(path, fresh()).posterior
    else:
        posterior.save(path)
        again = bayesrnn.Posterior.load(path, fresh())
    assert torch.equal(again.kl(), kl)
    assert again.prior == bayesrnn.Posterior.load(path, fresh()).prior
    assert type(again.prior) is type(posterior.prior)
    assert "weights" not in repr(again.prior).lower() or len(repr(again.prior)) < 200


def test_a_file_has_of_the_given_weights_only_what_is_bayesian(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    prior = bayesrnn.Centred(model, 0.2)
    posterior = bayesrnn.Posterior(model, prior, select="1.*")
    posterior.save(tmp_path / "p.safetensors")
    again = bayesrnn.Posterior.load(tmp_path / "p.safetensors", _two_layers())
    assert set(again.prior.weights) == {"1.weight", "1.bias"}


def _two_layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_the_prior_goes_where_the_model_goes():
    model = nn.Linear(3, 2)
    posterior = bayesrnn.Posterior(model, bayesrnn.Centred(model, 0.1))
    model.double()
    posterior.backward(lambda: model(torch.ones(1, 3, dtype=torch.float64)).sum(), kl_weight=1.0)
    assert posterior.kl().dtype == torch.float64


def test_a_prior_around_the_mean_of_a_posterior():
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    around = bayesrnn.Centred(posterior, 0.1)
    found = bayesrnn.Posterior(nn.Linear(3, 2), around)
    ((_, prior),) = found.prior_parts()
    assert torch.equal(prior.mean, posterior.mu)


def test_a_prior_around_a_network_with_another_head_names_the_cure():
    def network(classes: int) -> nn.Module:
        return nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, classes)})

    around, model = bayesrnn.Centred(network(2), 0.1), network(5)
    with pytest.raises(ValueError, match=r'use Grouped\({"head\.\*": Normal\(1.0\), "\*": Centred'):
        bayesrnn.Posterior(model, around)
    bayesrnn.Posterior(model, bayesrnn.Grouped({"head.*": bayesrnn.Normal(1.0), "*": around}))
