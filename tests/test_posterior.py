"""The life of a Posterior: sampling, training, state, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections import namedtuple

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn import init
from bayesrnn.kernels import one_pass, passes

PRIOR = bayesrnn.Normal(1.0)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class WithLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 4), nn.Linear(4, 2)


def _nan_linear() -> nn.Linear:
    linear = nn.Linear(2, 2)
    nn.init.constant_(linear.bias, math.nan)
    return linear


def _posterior(**kwargs) -> bayesrnn.Posterior:
    return bayesrnn.Posterior(_model(), kwargs.pop("prior", PRIOR), **kwargs)


X = torch.linspace(-1, 1, 15).view(5, 3)


def _step(posterior: bayesrnn.Posterior, w: float = 0.1, **kwargs) -> None:
    posterior.backward(lambda: posterior.model(X).square().sum(), kl_weight=w, **kwargs)


# ---------------------------------------------------------------------- what it is


def test_the_model_stays_an_ordinary_model():
    model = _model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    posterior = bayesrnn.Posterior(model, PRIOR)
    state = model.state_dict()
    assert set(state) == set(before) | {f"posterior_rho.{k}" for k in before}
    assert all(torch.equal(state[k], v) for k, v in before.items())
    moved = {k: v + 1 for k, v in before.items()}
    with pytest.warns(
        UserWarning, match=r"this state has no posterior_rho.\*, so rho stays as it is"
    ):
        missing = model.load_state_dict(moved, strict=False).missing_keys
    assert missing == [f"posterior_rho.{k}" for k in before]
    assert torch.equal(posterior.named(posterior.mu)["0.weight"], before["0.weight"] + 1)
    plain = _model()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k in before})
    assert torch.equal(plain(X), model(X))
    with torch.no_grad():
        posterior.mu.zero_()
    assert model(X).abs().sum() == 0


def test_what_an_optimiser_and_a_saver_see_is_the_whole_posterior_once():
    posterior = _posterior(select="0.*")
    model = posterior.model
    names = [name for name, _ in model.named_parameters()]
    assert names == ["posterior_mu", "posterior_rho", "2.weight", "2.bias"]
    assert [id(p) for p in model.parameters()] == [id(p) for p in posterior.parameters()]
    _step(posterior)
    model.zero_grad()
    assert all(p.grad is None for p in posterior.parameters())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len({tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}) == 6
    with torch.no_grad():
        posterior.mu.add_(1)
        posterior.rho.add_(1)
    model.load_state_dict(state)
    assert torch.equal(posterior.named(posterior.rho)["0.bias"], state["posterior_rho.0.bias"])
    assert torch.equal(model[0].weight, state["0.weight"])
    with pytest.raises(RuntimeError, match=r"size mismatch for 0.weight: \(1,\) given"):
        model.load_state_dict({**state, "0.weight": torch.ones(1)})


def test_a_wrapped_part_of_a_larger_model_is_saved_with_it():
    whole = nn.ModuleDict({"a": _model(), "b": nn.Linear(2, 2)})
    posterior = bayesrnn.Posterior(whole["a"], PRIOR)
    assert {"a.0.weight", "a.posterior_rho.0.weight", "b.weight"} <= set(whole.state_dict())
    state = {name: tensor + 1 for name, tensor in whole.state_dict().items()}
    whole.load_state_dict(state)
    assert torch.equal(posterior.named(posterior.rho)["0.bias"], state["a.posterior_rho.0.bias"])


def test_releasing_gives_an_ordinary_model_at_the_mean():
    posterior = _posterior()
    at_mean, names = posterior.model(X), ["0.weight", "0.bias", "2.weight", "2.bias"]
    posterior.weights.release()
    assert torch.equal(posterior.model(X), at_mean)
    assert list(posterior.model.state_dict()) == names
    assert [name for name, _ in posterior.model.named_parameters()] == names
    with pytest.raises(ValueError, match="it was released"), posterior.sample():
        pass


def test_select_by_name_pattern_and_predicate():
    assert [s.name for s in _posterior(select="0.*").layout] == ["0.weight", "0.bias"]
    assert [s.name for s in _posterior(select=["2.bias", "*.weight"]).layout] == [
        "0.weight",
        "2.weight",
        "2.bias",
    ]
    posterior = _posterior(select=lambda name, parameter: parameter.dim() == 2)
    assert [s.name for s in posterior.layout] == ["0.weight", "2.weight"]
    assert len(list(posterior.parameters())) == 4  # mu, rho and the two biases


def test_ordinary_parameters_train_beside_the_bayesian_ones():
    posterior = _posterior(select="0.*")
    bias = posterior.model[2].bias
    before = bias.detach().clone()
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1)
    _step(posterior)
    optimizer.step()
    assert not torch.equal(bias, before)


def test_a_tied_weight_is_one_slot_with_one_noise():
    model = nn.ModuleDict({"a": nn.Embedding(5, 4), "b": nn.Linear(4, 5)})
    model["b"].weight = model["a"].weight
    posterior = bayesrnn.Posterior(model, PRIOR)
    assert posterior.layout.size == 5 * 4 + 5
    with posterior.sample():
        assert model["a"].weight is model["b"].weight
        assert not torch.equal(
            model["a"].weight, posterior.named(posterior.mu.detach())["a.weight"]
        )


def test_a_module_used_twice_is_saved_once(tmp_path):
    shared = nn.Linear(3, 3)
    posterior = bayesrnn.Posterior(nn.Sequential(shared, nn.Tanh(), shared), PRIOR)
    assert posterior.layout.size == 12
    posterior.save(tmp_path / "p")
    again = nn.Linear(3, 3)
    bayesrnn.Posterior.load(tmp_path / "p", nn.Sequential(again, nn.Tanh(), again))
    assert torch.equal(again.weight, shared.weight)


def test_padding_rows_carry_no_noise_no_gradient_and_no_kl():
    padded = nn.Embedding(5, 3, padding_idx=1)
    posterior = bayesrnn.Posterior(padded, PRIOR, sigma_init=0.5)
    for _ in range(3):
        posterior.backward(lambda: padded(torch.tensor([0, 1, 2])).square().sum(), kl_weight=1.0)
        with posterior.sample():
            assert (padded.weight[1] == 0).all()
    assert (posterior.named(posterior.mu.grad)["weight"][1] == 0).all()
    assert (posterior.named(posterior.rho.grad)["weight"][1] == 0).all()
    assert (posterior.named(posterior.snr())["weight"][1] == math.inf).all()
    assert (posterior.kl_per_weight().view(5, 3)[1] == 0).all()
    assert torch.isfinite(posterior.kl())


# ---------------------------------------------------------------------- sampling


def test_a_generator_decides_the_draw_and_the_global_one_is_left_alone():
    posterior = _posterior()
    state = torch.get_rng_state()
    outputs = []
    for _ in range(2):
        with posterior.sample(generator=torch.Generator().manual_seed(4)):
            outputs.append(posterior.model(X))
    assert torch.equal(*outputs)
    assert torch.equal(state, torch.get_rng_state())


def test_samples_nest_and_the_mean_can_be_had_inside_one():
    posterior = _posterior()
    at_mean = posterior.model(X)
    with posterior.sample():
        outer = posterior.model(X)
        with posterior.sample():
            assert not torch.equal(posterior.model(X), outer)
        assert torch.equal(posterior.model(X), outer)
        with posterior.mean():
            assert torch.equal(posterior.model(X), at_mean)
        assert torch.equal(posterior.model(X), outer)
        assert torch.equal(posterior.snr(), posterior.mu.detach().abs() / posterior.sigma)
    assert torch.equal(posterior.model(X), at_mean)


def test_sampling_works_in_inference_mode():
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    with torch.inference_mode(), posterior.sample():
        posterior.model(X)
    assert torch.equal(posterior.mu, before)
    _step(posterior)


def test_the_state_is_that_of_the_mean_even_inside_a_sample(tmp_path):
    posterior = _posterior()
    before = {k: v.clone() for k, v in posterior.state_dict().items()}
    with posterior.sample():
        posterior.save(tmp_path / "p")
        assert all(torch.equal(v, before[k]) for k, v in posterior.state_dict().items())
    loaded = bayesrnn.Posterior.load(tmp_path / "p", _model())
    assert torch.equal(loaded.mu, posterior.mu)


def test_backward_may_come_after_the_block():
    posterior = _posterior()
    with posterior.sample(generator=torch.Generator().manual_seed(0)) as draw:
        loss = posterior.model(X).square().sum()
    loss.backward()
    posterior.accumulate_grad(draw, kl_weight=0.1)
    after = posterior.mu.grad
    posterior.mu.grad = None
    _step(posterior, generator=torch.Generator().manual_seed(0))
    assert torch.equal(after, posterior.mu.grad)


def test_backward_returns_a_loss_without_its_graph():
    posterior = _posterior()
    model = posterior.model
    loss = posterior.backward(lambda: model(X).square().sum(), kl_weight=0.1)
    assert (loss.shape, loss.grad_fn, loss.requires_grad) == ((), None, False)
    loss, output = posterior.backward(lambda: ((y := model(X)).sum(), y), kl_weight=0.1)
    assert not loss.requires_grad
    assert output.grad_fn is not None  # what is not the loss is returned as it is
    Named = namedtuple("Named", "loss, output")
    named = posterior.backward(lambda: Named((y := model(X)).sum(), y), kl_weight=0.1)
    assert type(named) is Named
    assert not named.loss.requires_grad
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=1.0)
    assert not sharpened.backward(lambda: model(X).sum(), kl_weight=0.1).requires_grad


def test_mu_rho_and_sigma_are_flat_vectors_alike():
    posterior = _posterior(sigma_init=0.3)
    for vector in (posterior.mu, posterior.rho, posterior.sigma):
        assert (vector.shape, vector.dtype) == ((26,), torch.float32)
        assert posterior.named(vector).keys() == dict(_model().named_parameters()).keys()
    assert not posterior.sigma.requires_grad
    with pytest.raises(AttributeError):
        posterior.sigma = torch.ones(26)  # set rho instead


def test_representations_are_one_line():
    posterior = _posterior()
    assert repr(posterior) == (
        "Posterior(Sequential, 26 Bayesian weights in 4 tensors, prior=Normal(sigma=1.0))"
    )
    assert repr(bayesrnn.Sharpened(posterior, loss_scale=0.05)) == (
        f"Sharpened({posterior!r}, loss_scale=0.05, sigma0=0.02, exact=False)"
    )
    assert repr(posterior.draw()) == "Draw(26 weights)"


def test_a_sample_that_is_changed_between_forward_and_backward_is_noticed():
    posterior = _posterior()
    draw = posterior.draw()
    with posterior.weights.holding(draw.leaves):
        loss = posterior.model(X).square().sum()
    draw.theta.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match="changed inside the block"), posterior.sample() as draw:
        draw.theta.mul_(2)
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
    draw.theta.mul_(2)
    with pytest.raises(ValueError, match="were changed in place"):
        posterior.accumulate_grad(draw, kl_weight=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_inside_the_block_is_refused_and_not_lost(fused):
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    posterior.mu.grad = torch.ones_like(posterior.mu)
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1, fused=fused)
    with pytest.raises(ValueError, match="Step after the block"), posterior.sample():
        optimizer.step()
    torch.testing.assert_close(posterior.mu.detach(), before - 0.1)
    assert torch.equal(posterior.model[0].weight, posterior.named(posterior.mu)["0.weight"])


def test_the_mean_is_the_mean_whatever_the_model_holds():
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    with posterior.sample() as draw:
        assert torch.equal(posterior.mu, before)
        assert not torch.equal(draw.theta, before)
        assert torch.equal(posterior.model[0].weight, posterior.named(draw.theta)["0.weight"])


# ---------------------------------------------------------------------- training


def test_several_draws_accumulate():
    posterior = _posterior()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        _step(posterior, generator=generator)
    total = posterior.mu.grad.clone()
    generator.manual_seed(1)
    separate = []
    for _ in range(3):
        posterior.mu.grad = None
        _step(posterior, generator=generator)
        separate.append(posterior.mu.grad)
    torch.testing.assert_close(total, sum(separate))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_any_optimiser_lowers_the_free_energy(optimizer):
    posterior = _posterior(sigma_init=0.1)
    optimiser = optimizer(posterior.parameters(), lr=0.01)

    def energy():
        return (posterior.model(X).square().sum() + posterior.kl()).item()

    before = energy()
    for _ in range(100):
        optimiser.zero_grad()
        _step(posterior, w=1.0)
        optimiser.step()
    assert energy() < before


def test_clipping_works_on_the_posterior_parameters():
    posterior = _posterior()
    _step(posterior)
    nn.utils.clip_grad_norm_(posterior.parameters(), 0.1)
    norms = [p.grad.norm() for p in posterior.parameters()]
    assert torch.stack(norms).norm() == pytest.approx(0.1, rel=1e-4)


def test_a_weight_the_loss_does_not_reach_still_pays_its_kl():
    posterior = _posterior()
    posterior.backward(lambda: posterior.model[0].weight.sum(), kl_weight=1.0)
    assert posterior.named(posterior.mu.grad)["2.bias"].abs().sum() > 0


def test_bf16_autocast():
    posterior = _posterior(sigma_init=0.01)
    with posterior.sample(generator=torch.Generator().manual_seed(0)) as draw:
        with torch.autocast("cpu", torch.bfloat16):
            output = posterior.model(X)
            loss = output.float().square().sum()
        assert output.dtype == torch.bfloat16
        loss.backward()
    posterior.accumulate_grad(draw, kl_weight=0.0)
    low = posterior.mu.grad.clone()
    posterior.mu.grad = None
    _step(posterior, w=0.0, generator=torch.Generator().manual_seed(0))
    assert low.dtype == torch.float32
    assert torch.cosine_similarity(low, posterior.mu.grad, dim=0) > 0.999


def test_a_whole_model_in_bf16_has_its_mean_in_float32():
    posterior = bayesrnn.Posterior(_model().bfloat16(), PRIOR)
    model, x = posterior.model, X.bfloat16()
    assert posterior.mu.dtype == posterior.rho.dtype == torch.float32
    before = posterior.mu.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        with posterior.sample() as draw:
            assert model[0].weight.dtype == torch.bfloat16
            model(x).float().square().sum().backward()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        assert posterior.mu.grad.dtype == posterior.rho.grad.dtype == torch.float32
        optimizer.step()
    moved = (posterior.mu.detach() - before).abs()
    assert (moved > 1e-5).float().mean() > 0.9  # steps below the spacing of bf16 numbers count
    assert moved.max() < 1e-3
    assert torch.equal(model[0].weight, posterior.named(posterior.mu)["0.weight"].bfloat16())


# ---------------------------------------------------------------------- quantities


def test_description_length_is_the_kl_in_bits():
    posterior = _posterior()
    assert posterior.description_length() == pytest.approx(posterior.kl().item() / math.log(2))
    assert posterior.kl_per_weight().sum().item() == pytest.approx(posterior.kl().item())


def test_kl_is_zero_where_posterior_and_prior_agree():
    posterior = _posterior(sigma_init=1.0)
    with torch.no_grad():
        posterior.mu.zero_()
    assert posterior.kl().item() == pytest.approx(0, abs=1e-4)


# ---------------------------------------------------------------------- initialisation


def test_sigma_starts_where_each_rule_says():
    assert torch.allclose(_posterior(sigma_init=0.3).sigma, torch.tensor(0.3))
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 4), "out": nn.Linear(4, 2)})
    prior = bayesrnn.ScaleMixture(0.25, math.exp(-1), math.exp(-7))
    p = prior.stddev
    assert p == pytest.approx(0.184, abs=5e-4)
    posterior = bayesrnn.Posterior(model, prior, sigma_init=init.from_prior())
    sigma = posterior.named(posterior.sigma)
    assert p / 4 <= sigma["rnn.weight_ih_l0"].min() < sigma["rnn.weight_ih_l0"].max() <= p / 2
    assert p / 2 <= sigma["out.weight"].min() < sigma["out.weight"].max() <= p
    posterior = _posterior(sigma_init=init.per_weight(0.2, floor=1e-4))
    torch.testing.assert_close(posterior.sigma, (0.2 * posterior.mu.abs()).clamp_min(1e-4))


def test_around_a_trained_network_the_mean_is_that_network():
    model = _model()
    trained = copy.deepcopy(model)
    posterior = bayesrnn.Posterior(model, PRIOR, sigma_init=init.proportional(0.05))
    assert torch.equal(posterior.model(X), trained(X))
    rms = trained[0].weight.square().mean().sqrt()
    torch.testing.assert_close(
        posterior.named(posterior.sigma)["0.weight"], (0.05 * rms).expand(4, 3)
    )


def test_mu_rules():
    model = nn.ModuleDict(
        {"e": nn.Embedding(500, 40), "rnn": nn.LSTM(40, 60, 2), "out": nn.Linear(60, 500)}
    )
    init.fan_in_(model, generator=torch.Generator().manual_seed(0))
    model.requires_grad_(False)
    assert model["e"].weight.std() == pytest.approx(1, rel=0.05)
    # A normal cut at two standard deviations has 0.88 of its spread.
    assert model["rnn"].weight_ih_l0.std() == pytest.approx(0.88 / math.sqrt(100), rel=0.05)
    assert model["rnn"].weight_hh_l1.std() == pytest.approx(0.88 / math.sqrt(120), rel=0.05)
    assert model["out"].weight.std() == pytest.approx(0.88 / math.sqrt(60), rel=0.05)
    assert (model["out"].bias == 0).all()
    init.uniform_(model, 0.05)
    assert all(p.abs().max() <= 0.05 for p in model.parameters())


@pytest.mark.parametrize("rule", [init.fan_in_, lambda m: init.uniform_(m, 0.1)])
def test_mu_rules_leave_padding_rows_at_zero(rule):
    embedding = nn.Embedding(5, 3, padding_idx=1)
    rule(embedding)
    assert (embedding.weight[1] == 0).all()
    assert (embedding.weight[0] != 0).all()


def test_fan_in_of_a_bidirectional_stack_counts_both_directions():
    rnn = nn.LSTM(40, 100, 2, bidirectional=True)
    init.fan_in_(rnn, generator=torch.Generator().manual_seed(0))
    rnn.requires_grad_(False)
    assert rnn.weight_ih_l0_reverse.std() == pytest.approx(0.88 / math.sqrt(140), rel=0.05)
    assert rnn.weight_ih_l1.std() == pytest.approx(0.88 / math.sqrt(300), rel=0.05)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: _posterior(sigma_init=0.0),
            "'0.weight' a standard deviation that is not positive",
        ),
        (lambda: _posterior(sigma_init=-1.0), "every sigma must be above 0"),
        (lambda: _posterior(sigma_init=math.nan), "not positive and finite"),
        (lambda: _posterior(select="1.*"), "'1.*' matches no parameter"),
        (lambda: _posterior(select="0.wieght"), "did you mean '0.weight'"),
        (
            lambda: _posterior(select="0"),
            r"select: '0' matches no parameter; did you mean '0\.\*'\?",
        ),
        (
            lambda: bayesrnn.Posterior(WithLSTM(), PRIOR, select="lstm"),
            r"did you mean 'lstm\.\*'\?",
        ),
        (
            lambda: bayesrnn.Posterior(WithLSTM(), PRIOR, select="lstmm.*"),
            r"did you mean 'lstm\.\*'\?",
        ),
        (lambda: _posterior(select=[X]), "select takes name patterns.*got Tensor"),
        (lambda: _posterior(select=3), "select takes name patterns.*got int"),
        (lambda: _posterior(select=nn.Linear(2, 2)), "select takes name patterns.*got Linear"),
        (lambda: _posterior(select=lambda *_: False), "picked none of 0.weight, 0.bias"),
        (lambda: _posterior(prior=3.0), "prior is 3.0, which has no log_prob"),
        (lambda: _posterior(prior="normal"), "prior is 'normal', which has no log_prob"),
        (
            lambda: _posterior(prior=bayesrnn.Normal),
            r"prior is the class Normal; give its parameters, such as Normal\(1.0\)",
        ),
        (
            lambda: bayesrnn.Grouped({"*": bayesrnn.Normal}),
            r"Grouped: '\*' is the class Normal; give its parameters, such as Normal\(1.0\)",
        ),
        (lambda: _posterior(sigma_init="a"), "sigma_init='a'; give a number or a rule"),
        (lambda: _posterior(sigma_init=lambda *_: torch.tensor(0.5)), "no tensor of its shape"),
        (lambda: _posterior(sigma_init=init.proportional(-1.0)), "fraction=-1.0 must be above 0"),
        (lambda: bayesrnn.Posterior(nn.Linear, PRIOR), "the class Linear; call it"),
        (lambda: bayesrnn.Posterior(KeepsAList(), PRIOR), "in the plain list 'all_weights' too"),
        (lambda: bayesrnn.Posterior(nn.Embedding(3, 2, max_norm=1.0), PRIOR), "max_norm"),
        (
            lambda: bayesrnn.Posterior(nn.utils.parametrizations.weight_norm(_nan_linear()), PRIOR),
            "holds nan or infinite values",
        ),
        (lambda: bayesrnn.Posterior(nn.Tanh(), PRIOR), "it has no trainable parameter"),
        (
            lambda: bayesrnn.Posterior(nn.LazyLinear(3), PRIOR),
            "has no shape yet; run the model once",
        ),
        (
            lambda: bayesrnn.Posterior(_model().requires_grad_(False), PRIOR),
            "requires_grad_",
        ),
        (
            lambda: bayesrnn.Posterior(_model().requires_grad_(False), PRIOR, select="0.*"),
            "matches only frozen parameters",
        ),
        (
            lambda: bayesrnn.Posterior(
                nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), PRIOR
            ),
            r"mixed dtypes: '0.weight' is torch.float32, '1.weight' is torch.float64.*model.float\(\)",
        ),
        (
            lambda: bayesrnn.Posterior(
                nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), PRIOR
            ),
            "mixed devices: '0.weight' is cpu, '1.weight' is meta",
        ),
        (
            lambda: _posterior(prior=bayesrnn.EmpiricalNormal(), sigma_init=init.from_prior()),
            "has no stddev",
        ),
        (lambda: bayesrnn.Posterior(nn.Linear(2, 2).to(torch.complex64), PRIOR), "complex64"),
        (
            lambda: _posterior(kl_gradient="exact"),
            "kl_gradient='exact'; use 'sampled' or 'expected'",
        ),
        (
            lambda: _posterior(
                prior=bayesrnn.RowScaleMixture(0.5, 1.0, 0.1), kl_gradient="expected"
            ),
            "needs a prior with expected_score.* RowScaleMixture has not; use 'sampled'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_bad_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_kls_gradient_is_expected_where_the_prior_can_tell_it_accurately():
    assert _posterior().kl_gradient == "expected"
    assert _posterior(prior=bayesrnn.ScaleMixture(0.25, 1.0, 0.0025)).kl_gradient == "expected"
    assert _posterior(prior=bayesrnn.EmpiricalNormal()).kl_gradient == "expected"
    assert _posterior(prior=bayesrnn.RowScaleMixture(0.5, 1.0, 0.1)).kl_gradient == "sampled"
    assert _posterior(prior=torch.distributions.Laplace(0.0, 1.0)).kl_gradient == "sampled"
    extreme = bayesrnn.ScaleMixture(0.5, 1.0, 1e-9)
    assert extreme.expected_score_error > 0.05
    assert _posterior(prior=extreme).kl_gradient == "sampled"
    with pytest.raises(ValueError, match=r"would be \d+% off for so extreme a ScaleMixture"):
        _posterior(prior=extreme, kl_gradient="expected")


def test_a_refused_construction_leaves_the_model_untouched():
    model = _model()
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match="sigma"):
        bayesrnn.Posterior(model, PRIOR, sigma_init=-1.0)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, None, "1", True])
def test_bad_kl_weight_changes_nothing(weight):
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).sum().backward()
    with pytest.raises(ValueError, match="kl_weight="):
        posterior.accumulate_grad(draw, kl_weight=weight)
    assert posterior.mu.grad is None
    posterior.accumulate_grad(draw, kl_weight=0.1)  # the gradient is still there


def test_a_refused_gradient_is_not_called_unused():
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).sum().backward()
    with pytest.raises(ValueError, match="kl_weight=-1"):
        posterior.accumulate_grad(draw, kl_weight=-1)
    _step(posterior)  # without a warning


def test_the_cure_for_a_bad_kl_weight_names_a_mean_loss_too():
    with pytest.raises(ValueError, match=r"or 1 / len\(dataset\) for a mean loss"):
        _step(_posterior(), -1)


@pytest.mark.parametrize("bad", [torch.tensor(-1.0), torch.tensor(math.nan), torch.ones(2)])
def test_a_kl_weight_may_be_a_tensor_of_one_number(bad):
    found = []
    for weight in (0.25, torch.tensor(0.25)):
        torch.manual_seed(0)
        posterior = _posterior()
        _step(posterior, weight, generator=torch.Generator().manual_seed(0))
        found.append(posterior.mu.grad)
    assert torch.equal(*found)
    with pytest.raises(ValueError, match="must be a finite number"):
        _step(_posterior(), bad)


def test_draws_are_used_once_and_before_the_step():
    posterior = _posterior()
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1)
    with posterior.sample() as first:
        posterior.model(X).sum().backward()
    posterior.accumulate_grad(first, kl_weight=0.1)
    with pytest.raises(ValueError, match="accumulate each draw once"):
        posterior.accumulate_grad(first, kl_weight=0.1)
    with posterior.sample() as second:
        posterior.model(X).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="before optimizer.step"):
        posterior.accumulate_grad(second, kl_weight=0.1)
    other = bayesrnn.Posterior(nn.Linear(2, 2), PRIOR)
    with pytest.raises(ValueError, match="no draw of this posterior"):
        other.accumulate_grad(second, kl_weight=0.1)


def test_only_what_went_backward_inside_the_block_counts():
    posterior = _posterior()
    posterior.model(X).sum().backward()  # at rest: nothing to do with any draw
    at_rest = posterior.model[0].weight.grad.clone()
    with posterior.sample() as draw:
        pass
    with pytest.raises(ValueError, match="this draw has no gradient"):
        posterior.accumulate_grad(draw, kl_weight=0.1)
    assert torch.equal(posterior.model[0].weight.grad, at_rest)  # and it is still there


@pytest.mark.parametrize("compiled", [False, True])
def test_a_draw_can_be_accumulated_inside_its_block(compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(one_pass, "LONG", 1)
    posterior = _posterior()
    with posterior.sample(generator=torch.Generator().manual_seed(0)) as draw:
        posterior.model(X).square().sum().backward()
        held = posterior.model[0].weight.detach().clone()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        assert torch.equal(posterior.model[0].weight, held)  # the model still holds the sample
    inside = posterior.mu.grad
    posterior.mu.grad = None
    _step(posterior, generator=torch.Generator().manual_seed(0))
    assert torch.equal(inside, posterior.mu.grad)


def test_a_sample_that_somebody_kept_does_not_become_a_gradient():
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
        kept = posterior.model.state_dict()
        before = {name: tensor.clone() for name, tensor in kept.items()}
    posterior.accumulate_grad(draw, kl_weight=0.1)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())


def test_a_change_of_a_draws_gradient_counts():
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
    whole = draw.g.clone()
    draw.g.clamp_(-0.1, 0.1)
    posterior.accumulate_grad(draw, kl_weight=0.0)
    assert torch.equal(posterior.mu.grad, whole.clamp(-0.1, 0.1))
    assert "Draw" in repr(draw)
    with pytest.raises(ValueError, match="this draw is spent"):
        _ = draw.eps


def test_an_interrupt_while_weights_are_written_leaves_the_mean(monkeypatch):
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    monkeypatch.setattr(one_pass, "STRETCH", 10)
    stretches = []

    def interrupted(theta, *others, key, start):
        stretches.append(theta)
        theta.fill_(7.0)
        if len(stretches) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(passes._sample_, "function", interrupted)
    with pytest.raises(KeyboardInterrupt), posterior.sample():
        pass
    assert torch.equal(posterior.mu, before)
    monkeypatch.undo()
    _step(posterior)  # and it goes on
    assert posterior.mu.grad is not None


def test_an_interrupt_while_the_mean_comes_back_leaves_the_mean(monkeypatch):
    posterior = _posterior()
    before = posterior.model[0].weight.detach().clone()
    hold, calls = posterior.weights._hold, []

    def interrupted(leaves):
        calls.append(leaves)
        if len(calls) == 2:
            posterior.model[0].weight = leaves[0]
            raise KeyboardInterrupt
        hold(leaves)

    monkeypatch.setattr(posterior.weights, "_hold", interrupted)
    with pytest.raises(KeyboardInterrupt), posterior.sample():
        pass
    monkeypatch.undo()
    assert torch.equal(posterior.model[0].weight, before)
    _step(posterior)


def test_no_graph_reaches_the_gradients():
    posterior = _posterior()
    with posterior.weights.holding(posterior.weights.leaves(posterior.mu)):
        pass
    _step(posterior)
    assert not posterior.mu.grad.requires_grad


def test_a_mean_in_other_memory_is_followed():
    posterior = _posterior(sigma_init=1e-6)
    values = torch.cat([p.detach().flatten() for p in posterior.parameters()]) + 1
    nn.utils.vector_to_parameters(values, posterior.parameters())
    with posterior.sample() as draw:
        torch.testing.assert_close(draw.theta, values[: len(draw.theta)], rtol=0, atol=10)
    assert torch.equal(posterior.model[0].weight, posterior.named(posterior.mu)["0.weight"])


def test_nested_samples_keep_their_gradients_apart():
    posterior = _posterior()
    with posterior.sample() as outer:
        (1000 * posterior.model(X).sum()).backward()
        with posterior.sample(generator=torch.Generator().manual_seed(1)) as inner:
            posterior.model(X).square().sum().backward()
        bayesrnn.predict(posterior, X)
    alone = _posterior()
    alone.load_state_dict(posterior.state_dict())
    with alone.sample(generator=torch.Generator().manual_seed(1)) as draw:
        alone.model(X).square().sum().backward()
    assert torch.equal(inner.g, draw.g)
    assert outer.g.norm() > 100 * inner.g.norm()


def test_prediction_between_backward_and_accumulate_changes_nothing():
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
    g = draw.g.clone()
    bayesrnn.predict(posterior, X)
    posterior.accumulate_grad(draw, kl_weight=0.0)
    assert torch.equal(posterior.mu.grad, g)


def test_a_gradient_that_is_never_used_is_noticed():
    posterior = _posterior()

    def forgetful():
        with posterior.sample():
            posterior.model(X).sum().backward()

    forgetful()
    with pytest.warns(UserWarning, match="was never used; call accumulate_grad"):
        forgetful()


def test_an_optimiser_made_before_the_posterior_is_noticed_at_its_first_step():
    model = _model()
    too_early = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = bayesrnn.Posterior(model, PRIOR)
    _step(posterior)
    with pytest.warns(UserWarning, match="was made before the model became Bayesian"):
        too_early.step()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_zeroed_gradients_raise_no_warning():
    posterior = _posterior()
    for _ in range(250):
        posterior.model.zero_grad(set_to_none=False)
        _step(posterior)


def test_one_autocast_region_may_hold_many_draws():
    """Autocast would go on using its copies of the first draw's weights."""
    posterior = _posterior(sigma_init=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        assert bayesrnn.predict(posterior, X, samples=5).mutual_information.max() > 0.01
        outputs = []
        for _ in range(2):
            with posterior.sample(), torch.no_grad():
                outputs.append(posterior.model(X))
    assert not torch.equal(*outputs)


def test_gradient_scaling_keeps_the_kl_when_its_weight_is_scaled_too():
    posterior, scale = _posterior(), 1024.0
    _step(posterior, w=0.5, generator=torch.Generator().manual_seed(0))
    right = posterior.mu.grad
    posterior.mu.grad = None
    posterior.backward(
        lambda: scale * posterior.model(X).square().sum(),
        kl_weight=0.5 * scale,
        generator=torch.Generator().manual_seed(0),
    )
    torch.testing.assert_close(posterior.mu.grad / scale, right)


def test_sparse_gradients():
    dense, sparse = nn.Embedding(5, 3), nn.Embedding(5, 3, sparse=True)
    grads = []
    for model in (dense, sparse):
        nn.init.ones_(model.weight)
        posterior = bayesrnn.Posterior(model, PRIOR)
        posterior.backward(
            lambda m=model: m(torch.tensor([0, 3, 3])).square().sum(),
            kl_weight=0.0,
            generator=torch.Generator().manual_seed(0),
        )
        grads.append(posterior.mu.grad)
    torch.testing.assert_close(*grads)


def test_a_compiled_model_is_saved_under_the_names_of_its_module(tmp_path):
    model, plain = _model(), _model()
    bayesrnn.Posterior(torch.compile(model, backend="eager"), PRIOR).save(tmp_path / "p")
    bayesrnn.Posterior.load(tmp_path / "p", plain)
    assert torch.equal(plain[0].weight, model[0].weight)


def test_two_posteriors_may_share_a_model_but_not_its_weights():
    model = _model()
    first = bayesrnn.Posterior(model, PRIOR, select="0.*")
    second = bayesrnn.Posterior(model, PRIOR, select="2.*")
    assert len(list(first.parameters())) == len(list(second.parameters())) == 2
    assert len(list(model.parameters())) == 4
    _step(first)
    _step(second)
    with pytest.warns(UserWarning, match="already Bayesian: sigma starts anew"):
        third = bayesrnn.Posterior(model, PRIOR)
    assert len(list(model.parameters())) == 2
    for old in (first, second):
        with pytest.raises(ValueError, match="another Posterior took it"), old.sample():
            pass
    _step(third)


def test_wrapping_again_leaves_nothing_out_of_the_optimiser():
    model = _model()
    bayesrnn.Posterior(model, PRIOR)
    with pytest.warns(UserWarning, match="already Bayesian: sigma starts anew"):
        posterior = bayesrnn.Posterior(model, PRIOR, select="0.*")
    assert [tuple(p.shape) for p in posterior.parameters()] == [(16,), (16,), (2, 4), (2,)]
    assert len(list(model.parameters())) == 4


def test_a_refused_second_wrapping_leaves_the_first():
    posterior = _posterior()
    with pytest.raises(ValueError, match="every sigma must be above 0"):
        bayesrnn.Posterior(posterior.model, PRIOR, sigma_init=0.0)
    _step(posterior)


def test_copies_pickles_and_moves_go_along():
    posterior = _posterior()
    twin = copy.deepcopy(posterior)
    with torch.no_grad():
        posterior.mu.zero_()
    assert twin.model(X).abs().sum() > 0
    _step(twin)
    torch.optim.SGD(twin.model.parameters(), lr=0.1).step()
    assert torch.equal(twin.model[0].weight, twin.named(twin.mu)["0.weight"])
    for half in (torch.float16, torch.bfloat16):
        twin.model.to(half)
        assert twin.mu.dtype == torch.float32
        assert twin.model[0].weight.dtype == half
    twin.model.double()
    assert twin.mu.dtype == torch.float64
    twin.backward(lambda: twin.model(X.double()).square().sum(), kl_weight=0.1)


def test_shared_embeddings_keep_their_padding_row():
    model = nn.ModuleDict(
        {"a": nn.Embedding(5, 3, padding_idx=2), "b": nn.Embedding(5, 3, padding_idx=2)}
    )
    model["b"].weight = model["a"].weight
    assert bayesrnn.Posterior(model, PRIOR).layout.fixed == (slice(6, 9),)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.weight, self.padding_idx = (
                nn.Parameter(torch.ones(4)),
                nn.Parameter(X),
                -1,
            )

    assert bayesrnn.Posterior(Decoder(), PRIOR).layout.fixed == ()


def test_the_kl_of_a_draw_leaves_the_padding_row_out():
    torch.manual_seed(0)
    for prior in (PRIOR, bayesrnn.RowScaleMixture(0.5, 1.0, 0.1)):
        padded = nn.Embedding(5, 3, padding_idx=1)
        nn.init.constant_(padded.weight, 0.7)
        posterior = bayesrnn.Posterior(padded, prior, sigma_init=0.5)
        draw = posterior.draw(generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            q = torch.distributions.Normal(posterior.mu, 0.5)
            theta = draw.theta
            keep = torch.ones(5, 3, dtype=torch.bool)
            keep[1] = False
            log_q = q.log_prob(theta).view(5, 3)[keep].sum()
        rest = bayesrnn.Posterior(nn.Embedding(4, 3), prior, sigma_init=0.5)
        [(_, bound)] = rest.prior_parts()
        log_p = bound.log_prob(theta.view(5, 3)[keep].flatten()).sum()
        torch.testing.assert_close(posterior.kl(draw), log_q - log_p)
        assert (posterior.sigma.view(5, 3)[1] == 0).all()


def test_the_empirical_scale_leaves_the_padding_row_out_and_follows_the_mean():
    padded = nn.Embedding(5, 3, padding_idx=1)
    nn.init.constant_(padded.weight, 0.5)
    with torch.no_grad():
        padded.weight[1] = 100
    posterior = bayesrnn.Posterior(padded, bayesrnn.EmpiricalNormal(), sigma_init=0.5)
    [(_, fitted)] = posterior.prior_parts()
    torch.testing.assert_close(fitted.stddev, torch.full((15,), 0.5**0.5))
    outside = posterior.kl()
    with posterior.sample():
        assert torch.equal(posterior.kl(), outside)


@pytest.mark.parametrize(
    "breaking",
    [
        lambda m: setattr(m[2], "bias", nn.Parameter(torch.zeros(2))),
        lambda m: m.__setitem__(2, nn.Linear(4, 2)),
    ],
)
def test_broken_views_are_noticed_before_anything_happens(breaking, tmp_path):
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    breaking(posterior.model)
    with pytest.raises(ValueError, match="no longer belongs to this posterior"), posterior.sample():
        pass
    with pytest.raises(ValueError, match="no longer belongs to this posterior"):
        posterior.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()
    assert torch.equal(before, posterior.mu)


def test_views_that_break_inside_a_block_are_noticed():
    posterior = _posterior()
    with pytest.raises(ValueError, match="no longer belongs"), posterior.sample():
        posterior.model[2].bias.data = torch.zeros(2)


def test_a_state_that_is_assigned_is_followed():
    posterior = _posterior()
    state = {name: tensor + 1 for name, tensor in posterior.model.state_dict().items()}
    posterior.model.load_state_dict(state, assign=True)
    assert torch.equal(posterior.model[0].weight, state["0.weight"])
    assert torch.equal(posterior.named(posterior.mu)["0.weight"], state["0.weight"])
    _step(posterior)


def test_freezing_after_wrapping_is_refused():
    posterior = _posterior()
    posterior.model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="'0.weight' was frozen after"), posterior.sample():
        pass
    posterior = _posterior()
    posterior.model.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen with its model after"), posterior.sample():
        pass


class KeepsAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.all_weights = [self.a]


def test_a_closure_must_return_a_loss():
    posterior = _posterior()
    with pytest.raises(ValueError, match=r"a tensor of shape \(5, 2\)"):
        posterior.backward(lambda: posterior.model(X), kl_weight=0.0)
    with pytest.raises(ValueError, match="pass a function that computes the loss, not a Tensor"):
        posterior.backward(posterior.model(X).sum(), kl_weight=0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scalar loss"):
        posterior.backward(lambda: 3.0, kl_weight=0.0)
    with pytest.raises(ValueError, match=r"return the loss; backward\(\) is called for you"):
        posterior.backward(lambda: posterior.model(X).sum().backward(), kl_weight=0.0)


@pytest.mark.parametrize(
    "prior", [bayesrnn.ScaleMixture(0.25, 1.0, 0.1), PRIOR, bayesrnn.EmpiricalNormal()], ids=str
)
def test_every_device_by_construction(monkeypatch, prior):
    """The meta device has shapes but no values: any step through the CPU or numpy would fail."""
    monkeypatch.setattr("bayesrnn.init._check_sigma", lambda *_: None)  # it looks at values
    model, x = _model().to("meta"), X.to("meta")
    posterior = bayesrnn.Posterior(model, prior)
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=1.0)
    posterior.backward(lambda: model(x).square().sum(), kl_weight=0.1)
    sharpened.backward(lambda: model(x).square().sum(), kl_weight=0.1)
    sharpened.bound(lambda: model(x).square().sum())
    for result in (posterior.mu.grad, sharpened.kappa.grad, posterior.kl(), posterior.snr()):
        assert result.device.type == "meta"
