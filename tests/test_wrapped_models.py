"""A wrapped model in the hands of code that knows nothing of posteriors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim.swa_utils import AveragedModel

import bayesrnn

PRIOR = bayesrnn.Normal(1.0)
X = torch.linspace(-1, 1, 15).view(5, 3)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _posterior(**kwargs) -> bayesrnn.Posterior:
    return bayesrnn.Posterior(_model(), PRIOR, **kwargs)


def _loss(model: nn.Module) -> torch.Tensor:
    return model(X).square().sum()


def _train(posterior: bayesrnn.Posterior, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    posterior.backward(lambda: _loss(posterior.model), kl_weight=0.1)
    optimizer.step()


def test_an_averaged_copy_of_the_model_predicts_with_its_average():
    posterior = _posterior()
    average = AveragedModel(posterior.model)
    optimizer = torch.optim.SGD(posterior.model.parameters(), lr=0.1)
    start = posterior.model(X)
    for _ in range(5):
        _train(posterior, optimizer)
        average.update_parameters(posterior.model)
    plain = _model()
    names = plain.state_dict().keys()
    state = average.module.state_dict()
    plain.load_state_dict({name: state[name] for name in names})
    assert torch.equal(average(X), plain(X))
    assert not torch.allclose(average(X), start, atol=1e-3)


def _by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def _by_torch_save(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, _by_pickle, _by_torch_save])
@pytest.mark.parametrize("inside", [False, True])
def test_a_copy_has_a_mean_of_its_own_also_from_inside_a_block(make_copy, inside):
    posterior = _posterior()
    at_mean = posterior.model(X)
    if inside:
        with posterior.sample():
            twin = make_copy(posterior)
    else:
        twin = make_copy(posterior)
    assert torch.equal(twin.model(X), at_mean)
    _train(twin, torch.optim.SGD(twin.model.parameters(), lr=0.5))
    assert not torch.equal(twin.model(X), at_mean)
    assert torch.equal(posterior.model(X), at_mean)
    assert torch.equal(twin.model[0].weight, twin.named(twin.mu)["0.weight"])
    with torch.no_grad():
        twin.mu.zero_()
    assert twin.model(X).abs().sum() == 0


def test_a_part_of_a_wrapped_model_is_saved_and_loaded_as_before():
    posterior = _posterior()
    part = posterior.model[0].state_dict()
    assert list(part) == ["weight", "bias"]
    posterior.model[0].load_state_dict({name: tensor + 1 for name, tensor in part.items()})
    assert torch.equal(posterior.named(posterior.mu)["0.weight"], part["weight"] + 1)
    assert torch.equal(posterior.model[0].bias, part["bias"] + 1)


def test_the_state_of_a_replaced_layer_is_the_new_layers():
    posterior = _posterior()
    posterior.model[2] = nn.Linear(4, 2)
    assert torch.equal(posterior.model.state_dict()["2.weight"], posterior.model[2].weight)


def test_a_draw_of_another_posterior_is_refused_though_it_is_as_long():
    first, second = _posterior(), _posterior()
    with first.sample() as draw:
        _loss(first.model).backward()
    with pytest.raises(ValueError, match="no draw of this posterior"):
        second.accumulate_grad(draw, kl_weight=0.1)


def test_a_half_precision_model_follows_whatever_is_written_to_its_mean():
    posterior = bayesrnn.Posterior(_model().bfloat16(), PRIOR)
    with torch.no_grad():
        posterior.mu.zero_()
    with posterior.mean():
        assert posterior.model(X.bfloat16()).abs().sum() == 0
    assert bayesrnn.predict(posterior, X.bfloat16(), samples=0).probs.max() == 0.5


def test_a_loss_that_goes_backward_outside_a_sample_is_noticed():
    posterior = _posterior()
    optimizer = torch.optim.SGD(posterior.model.parameters(), lr=0.1)
    _loss(posterior.model).backward()
    with pytest.warns(UserWarning, match="went backward at the mean"):
        optimizer.step()
    _train(posterior, optimizer)


def test_an_optimiser_of_an_earlier_posterior_is_noticed():
    posterior = _posterior()
    optimizer = torch.optim.SGD(posterior.model.parameters(), lr=0.1)
    posterior.backward(lambda: _loss(posterior.model), kl_weight=0.1)
    with pytest.warns(UserWarning, match="already Bayesian: sigma starts anew"):
        again = bayesrnn.Posterior(posterior.model, PRIOR)
    with pytest.warns(UserWarning, match="was made before the model became Bayesian"):
        optimizer.step()
    _train(again, torch.optim.SGD(again.model.parameters(), lr=0.1))


def test_a_frozen_rho_gets_no_gradient():
    posterior = _posterior()
    posterior.rho.requires_grad_(False)
    posterior.backward(lambda: _loss(posterior.model), kl_weight=0.1)
    assert posterior.rho.grad is None
    assert posterior.mu.grad is not None


def test_a_pending_gradient_stays_in_float32_when_the_model_is_converted():
    posterior = _posterior()
    posterior.backward(lambda: 1e7 * _loss(posterior.model), kl_weight=0.1)
    before = posterior.mu.grad.clone()
    posterior.model.half()
    assert torch.equal(posterior.mu.grad, before)


def test_a_spent_draw_leaves_the_gradients_alone():
    posterior = _posterior()
    with posterior.sample() as draw:
        _loss(posterior.model).backward()
        posterior.accumulate_grad(draw, kl_weight=0.0)
        before = posterior.mu.grad.clone()
        _loss(posterior.model).backward()
        assert draw.g is None
    assert torch.equal(posterior.mu.grad, before)


def test_a_gradient_of_another_shape_or_dtype_is_refused():
    posterior = _posterior()
    for g in (torch.ones(3), torch.ones(26).double()):
        with pytest.raises(ValueError, match="it must be as mu"):
            posterior.accumulate_grad(posterior.draw(), kl_weight=0.0, g=g)


def test_a_name_that_the_model_has_already_is_not_taken():
    model = _model()
    model.posterior_mu = 3
    posterior = bayesrnn.Posterior(model, PRIOR)
    assert model.posterior_mu == 3
    assert [name for name, _ in model.named_parameters()] == ["posterior2_mu", "posterior2_rho"]
    _train(posterior, torch.optim.SGD(model.parameters(), lr=0.1))


def test_wrapping_in_inference_mode_is_refused_and_changes_nothing():
    model = _model()
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match=r"outside torch.inference_mode\(\)"),
    ):
        bayesrnn.Posterior(model, PRIOR)
    assert len(list(model.parameters())) == 4


def test_a_model_that_is_released_inside_a_block_stays_released():
    posterior = _posterior()
    at_mean = posterior.model(X)
    with pytest.raises(ValueError, match="it was released"), posterior.sample():
        posterior.weights.release()
    assert torch.equal(posterior.model(X), at_mean)
    assert len(list(posterior.model.parameters())) == 4


def test_the_file_of_one_posterior_leaves_the_other_out(tmp_path):
    model = _model()
    first = bayesrnn.Posterior(model, PRIOR, select="0.*")
    second = bayesrnn.Posterior(model, PRIOR, select="2.*")
    assert {name.partition(".")[0] for name in first.state_dict()} == {"mu", "rho"}
    before = second.mu.detach().clone()
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    with torch.no_grad():
        first.mu.zero_()
    first.load_state_dict(state)
    assert torch.equal(first.named(first.mu)["0.weight"], state["mu.0.weight"])
    assert torch.equal(second.mu, before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_inside_the_block_is_exact(reentrant):
    grads = []
    for wrap in (
        lambda m: m(X.requires_grad_()),
        lambda m: torch.utils.checkpoint.checkpoint(m, X, use_reentrant=reentrant),
    ):
        posterior = _posterior(sigma_init=1.0)
        posterior.backward(
            lambda p=posterior, f=wrap: f(p.model).square().sum(),
            kl_weight=0.0,
            generator=torch.Generator().manual_seed(0),
        )
        grads.append(posterior.mu.grad)
    X.requires_grad_(False)
    torch.testing.assert_close(*grads)
