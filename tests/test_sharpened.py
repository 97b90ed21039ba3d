from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.kernels import noise, one_pass, passes
from tests import reference

PRIOR = bayesrnn.ScaleMixture(0.25, 0.5, 0.01)
X = torch.linspace(-1, 1, 30).view(5, 2, 3)


def _sharpened(exact: bool = False, **kwargs) -> bayesrnn.Sharpened:
    torch.manual_seed(0)
    return bayesrnn.Sharpened(
        bayesrnn.Posterior(nn.LSTM(3, 4), PRIOR, **kwargs), loss_scale=0.5, exact=exact
    )


def _loss(sharpened: bayesrnn.Sharpened, state=None):
    output, state = sharpened.posterior.model(X, state)
    return output.square().sum() / 2, state


def _gradient_at(sharpened: bayesrnn.Sharpened, vector):
    """The gradient of the loss at a vector of weights, by hand."""
    weights = sharpened.posterior.weights
    leaves = weights.leaves(vector)
    with weights.holding(leaves):
        return weights.flatten(torch.autograd.grad(_loss(sharpened)[0], leaves))


def test_both_passes_start_from_the_same_state_and_the_second_ones_is_returned():
    sharpened = _sharpened()
    model = sharpened.posterior.model
    state = (torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    ended = []
    model.register_forward_hook(lambda _, __, output: ended.append(output[1]))
    _, carried = sharpened.backward(lambda: _loss(sharpened, state), kl_weight=0.1)
    assert len(seen) == 2
    assert seen[0] is seen[1] is state
    assert carried is ended[1]


def test_ordinary_parameters_get_the_gradient_at_theta_only():
    sharpened = _sharpened(select="weight*")
    model = sharpened.posterior.model
    generator = torch.Generator().manual_seed(1)
    sharpened.backward(lambda: _loss(sharpened), kl_weight=0.1, generator=generator)
    once = model.bias_ih_l0.grad.clone()
    generator.manual_seed(1)
    posterior = sharpened.posterior
    phi = posterior.draw(generator=generator).theta
    g_phi = _gradient_at(sharpened, phi)
    eps0 = reference.noise(posterior, generator)
    theta = phi - sharpened.eta * g_phi + sharpened.sigma0 * eps0
    model.zero_grad()
    with posterior.weights.holding(posterior.weights.leaves(theta)):
        _loss(sharpened)[0].backward()
    torch.testing.assert_close(once, model.bias_ih_l0.grad)


@pytest.mark.parametrize("exact", [False, True])
def test_the_mean_is_back_when_the_closure_fails(exact):
    sharpened = _sharpened(exact)
    before = sharpened.posterior.mu.detach().clone()
    for fail_at in range(1, 4 if exact else 3):
        calls = []

        def closure(calls=calls, fail_at=fail_at):
            calls.append(1)
            if len(calls) == fail_at:
                raise KeyError
            return _loss(sharpened)[0]

        with pytest.raises(KeyError):
            sharpened.backward(closure, kl_weight=0.1)
        assert torch.equal(before, sharpened.posterior.mu)


def test_kl_theta_is_that_of_two_normals():
    sharpened = _sharpened()
    posterior = sharpened.posterior
    phi = posterior.mu.detach().clone()
    g_phi = _gradient_at(sharpened, phi)
    bound = sharpened.bound(lambda: _loss(sharpened))
    moved = torch.distributions.Normal(phi - sharpened.eta * g_phi, sharpened.sigma0)
    still = torch.distributions.Normal(phi, sharpened.sigma0)
    kl = torch.distributions.kl_divergence(moved, still).sum()
    torch.testing.assert_close(bound.kl_theta, kl, rtol=1e-4, atol=1e-6)


def test_without_noise_the_centre_is_scored():
    sharpened = _sharpened()
    posterior = sharpened.posterior
    phi = posterior.mu.detach().clone()
    centre = phi - sharpened.eta * _gradient_at(sharpened, phi)
    with posterior.weights.holding(posterior.weights.leaves(centre)):
        expected = _loss(sharpened)[0].detach()
    found = sharpened.bound(lambda: _loss(sharpened), noise=False)
    torch.testing.assert_close(found.value[0], expected)
    noisy = sharpened.bound(lambda: _loss(sharpened))
    torch.testing.assert_close(found.kl_theta, noisy.kl_theta, rtol=1e-4, atol=1e-6)
    assert found.value[0] != noisy.value[0]


def test_bound_can_start_from_a_sampled_phi_and_leaves_no_gradient():
    sharpened = _sharpened()
    values = {
        sharpened.bound(lambda: _loss(sharpened), sample_phi=sampled).kl_theta.item()
        for sampled in (False, False, True, True)
    }
    assert len(values) == 3  # the mean phi twice, and two samples
    assert all(p.grad is None for p in sharpened.posterior.model.parameters())
    assert all(p.grad is None for p in sharpened.parameters())


def test_training_lowers_the_bound():
    sharpened = _sharpened()
    optimizer = torch.optim.SGD(sharpened.parameters(), lr=0.05)

    def bound():
        b = sharpened.bound(lambda: _loss(sharpened)[0], generator=torch.Generator().manual_seed(0))
        return b.value + sharpened.loss_scale * b.kl_theta

    before = bound()
    for _ in range(50):
        optimizer.zero_grad()
        sharpened.backward(lambda: _loss(sharpened), kl_weight=1e-3)
        optimizer.step()
    assert bound() < 0.5 * before


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_exact_replays_the_dropout_masks_of_the_first_pass(generator):
    class Dropping(nn.Linear):
        masks: ClassVar[list] = []

        def forward(self, x):
            self.masks.append(torch.rand(8) < 0.5)
            return super().forward(x * self.masks[-1])

    model = Dropping(8, 2)
    Dropping.masks.clear()
    sharpened = bayesrnn.Sharpened(bayesrnn.Posterior(model, PRIOR), loss_scale=0.5, exact=True)
    x = torch.randn(3, 8)
    torch.manual_seed(5)
    sharpened.backward(lambda: model(x).square().sum(), kl_weight=0.1, generator=generator)
    after_two = torch.rand(1)
    first, second, replayed = Dropping.masks
    assert torch.equal(first, replayed)
    assert not torch.equal(first, second)
    # The global stream: each mask after the key of its pass, then what comes after the second mask.
    torch.manual_seed(5)
    for mask in (first, second):
        if generator is None:
            noise.new_key(None, x.device)
        assert torch.equal(mask, torch.rand(8) < 0.5)
    assert torch.equal(after_two, torch.rand(1))


def test_exact_gradients_of_ordinary_parameters():
    """The frozen-out bias moves g_phi too; autograd through the whole sampler says by how much."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, eta_scale = torch.randn(5, 3).double(), 0.3
    posterior = bayesrnn.Posterior(model, PRIOR, select="0.weight", sigma_init=0.1)
    sharpened = bayesrnn.Sharpened(
        posterior, loss_scale=0.5, sigma0=0.1, kappa_init=eta_scale, exact=True
    )
    seed = torch.Generator().manual_seed(2)
    sharpened.backward(lambda: model(x).square().sum(), kl_weight=0.0, generator=seed)

    seed.manual_seed(2)
    eps, eps0 = (reference.noise(posterior, seed) for _ in range(2))
    bias = model[2].bias.detach().clone().requires_grad_()

    def loss(weight):
        hidden = torch.tanh(x @ weight.view(4, 3).T + model[0].bias.detach())
        return (hidden @ model[2].weight.detach().T + bias).square().sum()

    phi = (posterior.mu + posterior.sigma * eps).detach().requires_grad_()
    (g_phi,) = torch.autograd.grad(loss(phi), phi, create_graph=True)
    theta = phi - sharpened.eta * g_phi + 0.1 * eps0
    energy = loss(theta) + 0.5 * ((sharpened.eta * g_phi) ** 2).sum() / (2 * 0.1**2)
    (right,) = torch.autograd.grad(energy, bias)
    torch.testing.assert_close(model[2].bias.grad, right, rtol=1e-9, atol=1e-10)


def test_kl_theta_of_the_last_minibatch():
    sharpened = _sharpened()
    sharpened.backward(
        lambda: _loss(sharpened), kl_weight=0.1, generator=torch.Generator().manual_seed(0)
    )
    posterior = sharpened.posterior
    phi = posterior.draw(generator=torch.Generator().manual_seed(0)).theta
    moved = sharpened.eta * _gradient_at(sharpened, phi)
    right = moved.square().sum() / (2 * sharpened.sigma0**2)
    torch.testing.assert_close(sharpened.kl_theta, right)


def test_the_bound_is_of_the_mean_inside_a_sample_and_keeps_no_graph():
    sharpened = _sharpened()
    at_rest = sharpened.bound(lambda: _loss(sharpened))
    with sharpened.posterior.sample():
        inside = sharpened.bound(lambda: _loss(sharpened))
    assert torch.equal(at_rest.kl_theta, inside.kl_theta)
    assert not at_rest.value[0].requires_grad


def test_the_bound_of_a_sampled_phi_follows_the_generator():
    sharpened = _sharpened()
    same = [
        sharpened.bound(
            lambda: _loss(sharpened), sample_phi=True, generator=torch.Generator().manual_seed(3)
        ).kl_theta
        for _ in range(2)
    ]
    assert torch.equal(*same)


def test_the_bound_takes_the_scale_of_its_own_loss():
    sharpened = _sharpened()
    usual = sharpened.bound(lambda: _loss(sharpened))
    nats = sharpened.bound(lambda: _loss(sharpened)[0] / sharpened.loss_scale, loss_scale=1.0)
    torch.testing.assert_close(usual.kl_theta, nats.kl_theta)


def test_sharpening_inside_one_autocast_region_runs_its_second_pass_at_theta():
    model = nn.Linear(3, 4)  # an LSTM has no bf16 form on every processor
    posterior = bayesrnn.Posterior(model, PRIOR, sigma_init=0.5)
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=0.5)
    losses = []

    def closure():
        value = model(X).square().sum()
        losses.append(value.item())
        return value

    with torch.autocast("cpu", torch.bfloat16):
        sharpened.backward(closure, kl_weight=0.1)
    assert losses[0] != losses[1]


def test_saving_and_loading(tmp_path):
    sharpened = _sharpened(exact=True)
    with torch.no_grad():
        sharpened.kappa.uniform_()
    sharpened.save(tmp_path / "s")
    loaded = bayesrnn.Sharpened.load(tmp_path / "s", nn.LSTM(3, 4))
    assert torch.equal(loaded.kappa, sharpened.kappa)
    assert (loaded.sigma0, loaded.loss_scale, loaded.exact) == (0.02, 0.5, True)
    alone = bayesrnn.Posterior.load(tmp_path / "s", nn.LSTM(3, 4))
    assert torch.equal(alone.rho, sharpened.posterior.rho)
    alone.save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"use Posterior\.load"):
        bayesrnn.Sharpened.load(tmp_path / "p", nn.LSTM(3, 4))


@pytest.mark.parametrize("bad", [{"loss_scale": 0.0}, {"loss_scale": 1.0, "sigma0": -1.0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="must be a positive, finite number"):
        bayesrnn.Sharpened(bayesrnn.Posterior(nn.Linear(2, 2), PRIOR), **bad)


def test_bad_closures():
    sharpened = _sharpened()
    with pytest.raises(ValueError, match="no gradient; do not detach"):
        sharpened.backward(lambda: _loss(sharpened)[0].detach(), kl_weight=0.1)
    free = torch.zeros((), requires_grad=True)
    with pytest.raises(ValueError, match="does not depend on any Bayesian weight"):
        sharpened.backward(lambda: free * 2, kl_weight=0.1)
    with pytest.raises(ValueError, match="kl_weight=-1"):
        sharpened.backward(lambda: _loss(sharpened), kl_weight=-1)


def test_no_state_is_loaded_inside_a_sample():
    sharpened = _sharpened()
    state = {name: value + 1 for name, value in sharpened.state_dict().items()}
    before = sharpened.posterior.mu.detach().clone()
    with sharpened.posterior.sample(), pytest.raises(ValueError, match="leave the block first"):
        sharpened.load_state_dict(state)
    assert torch.equal(sharpened.posterior.mu, before)


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 2e-2), (torch.float16, 1e-3)],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["stretches", "compiled"])
@pytest.mark.parametrize("size", [1, 300_000, 300_001])
def test_kl_theta_counts_every_weight_once(size, compiled, dtype, rtol, monkeypatch):
    monkeypatch.setattr(one_pass, "enabled", compiled)
    torch.manual_seed(0)
    phi, g_phi, kappa = (f(size).to(dtype) for f in (torch.zeros, torch.randn, torch.rand))
    key = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    settings = {"eta_unit": 4e-4, "sigma0": 0.02}
    found = passes.sharpen_(torch.empty_like(phi), phi, g_phi, kappa, key=key, **settings)
    right = (4e-4 * kappa.double() * g_phi.double()).square().sum() / (2 * 0.02**2)
    assert one_pass.enabled == compiled
    torch.testing.assert_close(found.double(), right, rtol=rtol, atol=0)
