"""The life of a Posterior: sampling, training, state, and what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn import init
from bayesrnn.variational import one_pass, passes, pieces

PRIOR = bayesrnn.Normal(1.0)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


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
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    model.load_state_dict({k: v + 1 for k, v in before.items()})
    assert torch.equal(posterior.named(posterior.mu)["0.weight"], before["0.weight"] + 1)
    with torch.no_grad():
        posterior.mu.zero_()
    assert model(X).abs().sum() == 0


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
            model["a"].weight, posterior.named(posterior.current_mu())["a.weight"]
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
        assert torch.equal(posterior.snr(), posterior.current_mu().abs() / posterior.sigma())
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


def test_backward_after_the_block_is_noticed():
    posterior = _posterior()
    with posterior.sample():
        loss = posterior.model(X).square().sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_step_inside_the_block_is_refused_and_undone():
    posterior = _posterior()
    before = posterior.mu.detach().clone()
    posterior.mu.grad = torch.ones_like(posterior.mu)
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="Step after the block"), posterior.sample():
        optimizer.step()
    assert torch.equal(posterior.mu, before)


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


def test_a_whole_model_in_bf16():
    posterior = bayesrnn.Posterior(_model().bfloat16(), PRIOR)
    posterior.backward(lambda: posterior.model(X.bfloat16()).float().square().sum(), kl_weight=0.1)
    assert posterior.mu.grad.dtype == torch.bfloat16
    assert torch.isfinite(posterior.rho.grad).all()


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
    assert torch.allclose(_posterior(sigma_init=0.3).sigma(), torch.tensor(0.3))
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 4), "out": nn.Linear(4, 2)})
    prior = bayesrnn.ScaleMixture(0.25, math.exp(-1), math.exp(-7))
    p = prior.stddev
    assert p == pytest.approx(0.184, abs=5e-4)
    posterior = bayesrnn.Posterior(model, prior, sigma_init=init.from_prior())
    sigma = posterior.named(posterior.sigma())
    assert p / 4 <= sigma["rnn.weight_ih_l0"].min() < sigma["rnn.weight_ih_l0"].max() <= p / 2
    assert p / 2 <= sigma["out.weight"].min() < sigma["out.weight"].max() <= p
    posterior = _posterior(sigma_init=init.per_weight(0.2, floor=1e-4))
    torch.testing.assert_close(posterior.sigma(), (0.2 * posterior.mu.abs()).clamp_min(1e-4))


def test_around_a_trained_network_the_mean_is_that_network():
    model = _model()
    trained = copy.deepcopy(model)
    posterior = bayesrnn.Posterior(model, PRIOR, sigma_init=init.proportional(0.05))
    assert torch.equal(posterior.model(X), trained(X))
    rms = trained[0].weight.square().mean().sqrt()
    torch.testing.assert_close(
        posterior.named(posterior.sigma())["0.weight"], (0.05 * rms).expand(4, 3)
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
        (lambda: _posterior(select=lambda *_: False), "picked none of 0.weight, 0.bias"),
        (lambda: _posterior(prior=3.0), "has no log_prob"),
        (
            lambda: _posterior(prior=bayesrnn.Normal),
            "prior is the class Normal; give its parameters",
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
        held = posterior.mu.detach().clone()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        assert torch.equal(posterior.mu, held)  # the model still holds the sample
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


def test_a_change_of_a_draws_gradient_counts(monkeypatch):
    monkeypatch.setattr(pieces, "LARGE", 5)
    posterior = _posterior()
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
    whole = draw.g.clone()
    draw.g.clamp_(-0.1, 0.1)
    posterior.accumulate_grad(draw, kl_weight=0.0)
    assert torch.equal(posterior.mu.grad, whole.clamp(-0.1, 0.1))
    assert "Draw" in repr(draw)
    with pytest.raises(ValueError, match="this draw is spent"):
        posterior.noise_of(draw)


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
    show, calls = posterior.weights.show, []

    def interrupted(vector):
        calls.append(vector)
        if len(calls) == 2:
            posterior.model[0].weight.data = calls[0][: before.numel()].view(before.shape)
            raise KeyboardInterrupt
        show(vector)

    monkeypatch.setattr(posterior.weights, "show", interrupted)
    with pytest.raises(KeyboardInterrupt), posterior.sample():
        pass
    monkeypatch.undo()
    assert torch.equal(posterior.model[0].weight, before)
    _step(posterior)


def test_a_mean_with_a_graph_can_be_placed():
    posterior = _posterior()
    with posterior.place(posterior.mu):
        pass
    _step(posterior)
    assert not posterior.mu.grad.requires_grad
    assert not posterior.noise().requires_grad


def test_a_mean_in_other_memory_is_noticed():
    posterior = _posterior()
    values = torch.cat([p.detach().flatten() for p in posterior.parameters()])
    nn.utils.vector_to_parameters(values, posterior.parameters())
    with pytest.raises(ValueError, match="was given other memory"), posterior.sample():
        pass


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


def test_an_optimiser_of_the_model_instead_of_the_posterior_is_noticed():
    posterior = _posterior()
    for _ in range(199):
        _step(posterior)
    with pytest.warns(UserWarning, match=r"must be given posterior.parameters\(\)"):
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
    bayesrnn.Posterior(model, PRIOR)
    with pytest.raises(ValueError, match="another Posterior took it"), first.sample():
        pass


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
    padded = nn.Embedding(5, 3, padding_idx=1)
    nn.init.constant_(padded.weight, 0.7)
    for prior in (PRIOR, bayesrnn.RowScaleMixture(0.5, 1.0, 0.1)):
        posterior = bayesrnn.Posterior(padded, prior, sigma_init=0.5)
        draw = posterior.draw(generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            q = torch.distributions.Normal(posterior.mu, 0.5)
            theta = draw.theta
            keep = torch.ones(5, 3, dtype=torch.bool)
            keep[1] = False
            log_q = q.log_prob(theta).view(5, 3)[keep].sum()
        rest = bayesrnn.Posterior(nn.Embedding(4, 3), prior, sigma_init=0.5)
        log_p = rest._bound_prior.log_prob(theta.view(5, 3)[keep]).sum()
        torch.testing.assert_close(posterior.kl(draw), log_q - log_p)
        assert (posterior.sigma().view(5, 3)[1] == 0).all()


def test_the_empirical_scale_leaves_the_padding_row_out_and_follows_the_mean():
    padded = nn.Embedding(5, 3, padding_idx=1)
    nn.init.constant_(padded.weight, 0.5)
    with torch.no_grad():
        padded.weight[1] = 100
    posterior = bayesrnn.Posterior(padded, bayesrnn.EmpiricalNormal(), sigma_init=0.5)
    assert posterior.fitted_prior().variances.item() == pytest.approx(0.5)
    outside = posterior.kl()
    with posterior.sample():
        assert torch.equal(posterior.kl(), outside)


@pytest.mark.parametrize(
    "breaking",
    [
        lambda m: m.double(),
        lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
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
    bias = posterior.model[2].bias
    with pytest.raises(ValueError, match="no longer belongs"), posterior.sample():
        bias.data = bias.data.clone()


def test_freezing_after_wrapping_is_refused():
    posterior = _posterior()
    posterior.model[0].requires_grad_(False)
    with (
        pytest.raises(ValueError, match="'0.weight' was frozen after wrapping"),
        posterior.sample(),
    ):
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
