"""What people do around a posterior: it works, or is refused with its cure, and never silently wrong."""

from __future__ import annotations

import asyncio
import copy
import functools
import pickle
import threading

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bayesrnn
from bayesrnn.storage import save_tensors

PRIOR = bayesrnn.Normal(1.0)
X = torch.linspace(-1, 1, 15).view(5, 3)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _posterior() -> bayesrnn.Posterior:
    return bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.5)


def _at_rest(posterior: bayesrnn.Posterior) -> bool:
    weight = posterior.model.get_submodule("0").weight
    assert isinstance(weight, torch.Tensor)
    return torch.equal(weight.flatten(), posterior.mu[: weight.numel()])


# ---------------------------------------------------------------------- optimisers


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_weight_decay_on_rho_is_refused_before_it_does_anything(optimizer):
    posterior = _posterior()
    steps = optimizer(posterior.model.parameters(), lr=0.1, weight_decay=0.01)
    posterior.backward(lambda: posterior.model(X).square().sum(), kl_weight=0.1)
    mu, rho = posterior.mu.detach().clone(), posterior.rho.detach().clone()
    with pytest.raises(ValueError, match="weight_decay=0.01 would pull rho to 0.*weight_decay=0:"):
        steps.step()
    assert torch.equal(posterior.mu, mu)
    assert torch.equal(posterior.rho, rho)
    optimizer(posterior.model.parameters(), lr=0.1, weight_decay=0).step()
    assert not torch.equal(posterior.rho, rho)


def test_weight_decay_on_other_models_and_on_ordinary_parameters_is_nobodys_business():
    posterior = _posterior()
    other = nn.Linear(3, 1)
    other(X).sum().backward()
    torch.optim.AdamW(other.parameters()).step()
    model = _model()
    posterior = bayesrnn.Posterior(model, PRIOR, select="0.*")
    posterior.backward(lambda: model(X).square().sum(), kl_weight=0.1)
    groups = [
        {"params": [posterior.mu, posterior.rho], "weight_decay": 0.0},
        {"params": list(posterior.weights.ordinary_parameters())},
    ]
    torch.optim.AdamW(groups, lr=0.1).step()


def test_weight_decay_on_the_step_sizes_of_sharpening_is_refused():
    sharpened = bayesrnn.Sharpened(_posterior(), loss_scale=1.0)
    sharpened.backward(lambda: sharpened.posterior.model(X).square().sum(), kl_weight=0.1)
    groups = [
        {"params": [p], "weight_decay": 0.1 * (p is sharpened.kappa)}
        for p in sharpened.parameters()
    ]
    with pytest.raises(ValueError, match="would pull kappa to 0"):
        torch.optim.SGD(groups, lr=0.1).step()


# ---------------------------------------------------------------------- norms


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.root = RMSNormOfSomeone(8)

    def forward(self, x):
        return self.last(self.root(self.norm(self.first(x))))


class RMSNormOfSomeone(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.gain * x / x.square().mean(-1, keepdim=True).sqrt()


def test_gains_of_norms_are_left_out_unless_they_are_named():
    posterior = bayesrnn.Posterior(Normed(), PRIOR)
    names = {slot.name for slot in posterior.layout}
    assert names == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert posterior.weights.left_out == ["norm.weight", "norm.bias", "root.gain"]
    assert "3 gains and biases of norms left out" in repr(posterior)
    trained = {id(p) for p in posterior.parameters()}
    assert id(posterior.model.norm.weight) in trained  # pyright: ignore
    every = bayesrnn.Posterior(Normed(), PRIOR, select="*")
    assert {"norm.weight", "norm.bias", "root.gain"} < {slot.name for slot in every.layout}
    assert "left out" not in repr(every)
    assert "left out" not in repr(_posterior())
    # A model of nothing else is meant to be Bayesian.
    assert bayesrnn.Posterior(nn.LayerNorm(4), PRIOR).layout.size == 8


def test_a_normed_network_learns_under_a_prior_around_0(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(300, 3)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = Normed()
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(0.5), sigma_init=0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        posterior.backward(lambda: nn.functional.cross_entropy(model(x), y), kl_weight=1 / 300)
        optimizer.step()
    assert model.norm.weight.abs().mean() > 0.5
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    again = bayesrnn.Posterior.load(path, Normed())
    torch.testing.assert_close(again.model(x), model(x))


# ---------------------------------------------------------------------- weights kept elsewhere, and hooks


class Keeps(nn.Module):
    def __init__(self, keep) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self._kept = keep(self.layer.weight)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "keep",
    [
        lambda w: [w],
        lambda w: {"deep": [(1, {"w": w})]},
        lambda w: {w},
        lambda w: functools.partial(torch.add, w),
        lambda w: lambda x: x @ w.T,
        lambda w: [lambda x: x @ w.T],
    ],
    ids=["private list", "nested", "set", "partial", "closure", "closure in a list"],
)
def test_a_weight_that_is_kept_elsewhere_is_refused(keep):
    model = Keeps(keep)
    with pytest.raises(ValueError, match="keeps the weight 'layer.weight' in the .*'_kept'"):
        bayesrnn.Posterior(model, PRIOR)
    assert isinstance(model.layer.weight, nn.Parameter)  # nothing was touched
    bayesrnn.Posterior(model, PRIOR, select="layer.bias")


def test_a_forward_hook_that_closed_over_a_weight_is_refused():
    model = _model()
    weight = model[0].weight
    model.register_forward_hook(lambda module, args, output: output + weight.sum())
    with pytest.raises(ValueError, match="keeps the weight '0.weight' in the .*'_forward_hooks'"):
        bayesrnn.Posterior(model, PRIOR)


def test_what_is_kept_but_no_weight_is_no_matter():
    model = _model()
    model.register_forward_hook(lambda module, args, output: None)
    model.notes = {"numbers": [1, 2], "self": (model,)}  # pyright: ignore
    bayesrnn.Posterior(nn.LSTM(3, 4), PRIOR)
    bayesrnn.Posterior(model, PRIOR)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_weight_with_a_hook_is_refused(register):
    model = _model()
    handle = getattr(model[2].weight, register)(lambda grad: None)
    with pytest.raises(ValueError, match="'2.weight' has a hook on its gradient"):
        bayesrnn.Posterior(model, PRIOR)
    bayesrnn.Posterior(model, PRIOR, select="0.*")
    handle.remove()
    bayesrnn.Posterior(_model(), PRIOR)


# ---------------------------------------------------------------------- blocks, threads and tasks


def test_blocks_closed_out_of_order_are_noticed_and_leave_the_mean():
    posterior = _posterior()
    first, second = posterior.sample(), posterior.sample()
    first.__enter__()
    second.__enter__()
    with pytest.raises(ValueError, match="closed in another order"):
        first.__exit__(None, None, None)
    assert not _at_rest(posterior)  # the second is still open
    second.__exit__(None, None, None)
    assert _at_rest(posterior)
    with posterior.sample(), posterior.sample():
        assert not _at_rest(posterior)
    assert _at_rest(posterior)


def test_an_error_inside_blocks_closed_out_of_order_is_the_one_that_is_seen():
    posterior = _posterior()
    first, second = posterior.sample(), posterior.sample()
    first.__enter__()
    second.__enter__()
    error = KeyError("mine")
    assert not first.__exit__(KeyError, error, None)  # so `with` raises it on
    second.__exit__(None, None, None)
    assert _at_rest(posterior)


def test_generators_that_take_turns_are_noticed():
    posterior = _posterior()

    def sampled():
        with posterior.sample():
            for _ in range(2):
                yield posterior.model(X)

    one, other = sampled(), sampled()
    next(one), next(other), next(one), next(other)
    with pytest.raises(ValueError, match="closed in another order"):
        next(one)
    assert next(other, "done") == "done"
    assert _at_rest(posterior)


def test_two_tasks_cannot_be_inside_at_once():
    posterior = _posterior()

    async def predict() -> None:
        with posterior.sample():
            await asyncio.sleep(0.01)

    async def both():
        return await asyncio.gather(predict(), predict(), return_exceptions=True)

    results = asyncio.run(both())
    assert results[0] is None
    assert "another thread or task" in str(results[1])
    assert _at_rest(posterior)


def test_threads_with_a_lock_or_a_copy_are_right_and_without_are_refused():
    posterior, lock = _posterior(), threading.Lock()
    expected = bayesrnn.predict(posterior, X, samples=3, seed=1).log_probs
    wrong, refused = [], []

    def work(own: bayesrnn.Posterior, guard) -> None:
        for _ in range(40):
            try:
                with guard:
                    found = bayesrnn.predict(own, X, samples=3, seed=1).log_probs
            except ValueError as error:
                refused.append(str(error))
            else:
                if not torch.equal(found, expected):
                    wrong.append(found)

    def run(*arguments) -> None:
        threads = [threading.Thread(target=work, args=pair) for pair in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run((posterior, lock), (posterior, lock))
    run((copy.deepcopy(posterior), threading.Lock()), (copy.deepcopy(posterior), threading.Lock()))
    assert (wrong, refused) == ([], [])
    inside = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with posterior.sample():
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    with pytest.raises(ValueError, match="sampled in another thread or task.*lock"):
        bayesrnn.predict(posterior, X)
    leave.set()
    holder.join()
    assert _at_rest(posterior)
    assert torch.equal(bayesrnn.predict(posterior, X, samples=3, seed=1).log_probs, expected)


# ---------------------------------------------------------------------- learning rates by layer


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    ],
    ids=["sgd", "adam", "fused"],
)
def test_a_learning_rate_of_its_own_for_a_layer(optimizer):
    """Each weight goes as far as with an optimiser that has its learning rate."""
    factors = {"0.*": 0.25, "2.bias": 0.0}
    plain, scaled = _posterior(), _posterior()
    scaled.scale_lr(factors)
    start = {"mu": plain.mu.detach().clone(), "rho": plain.rho.detach().clone()}
    for posterior in (plain, scaled):
        steps = optimizer(posterior.model.parameters())
        posterior.backward(
            lambda p=posterior: p.model(X).square().sum(),
            kl_weight=0.1,
            generator=torch.Generator().manual_seed(0),
        )
        steps.step()
    for kind, before in start.items():
        far = plain.named((getattr(plain, kind) - before).detach())
        near = scaled.named((getattr(scaled, kind) - before).detach())
        for name, factor in {"0.weight": 0.25, "0.bias": 0.25, "2.weight": 1, "2.bias": 0}.items():
            assert far[name].abs().max() > 0
            torch.testing.assert_close(near[name], factor * far[name], atol=1e-6, rtol=1e-4)
    assert _at_rest(scaled)


def test_learning_rates_that_cannot_be():
    posterior = _posterior()
    with pytest.raises(
        ValueError, match="scale_lr: 'lstm.*' matches no Bayesian weight, such as 0"
    ):
        posterior.scale_lr({"lstm.*": 0.1})
    with pytest.raises(ValueError, match="'0.*' has -1; use a number, 0 or more"):
        posterior.scale_lr({"0.*": -1})


# ---------------------------------------------------------------------- copies, exports, files


def test_a_plain_copy_of_the_mean_and_of_a_draw():
    posterior = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.5, select="0.*")
    mean = posterior.plain_model()
    draw = posterior.draw()
    sampled = posterior.plain_model(draw)
    with torch.no_grad(), posterior.weights.holding(draw.leaves):
        torch.testing.assert_close(sampled(X), posterior.model(X))
    torch.testing.assert_close(mean(X), posterior.model(X))
    for plain in (mean, sampled):
        assert set(dict(plain.named_parameters())) == set(dict(_model().named_parameters()))
        assert set(plain.state_dict()) == set(_model().state_dict())
        assert all(isinstance(p, nn.Parameter) for p in (plain[0].weight, plain[2].weight))  # pyright: ignore
        exported = torch.export.export(plain, (X,)).module()
        torch.testing.assert_close(exported(X), plain(X))
    with torch.no_grad():
        mean[0].weight.add_(1)  # pyright: ignore
    assert _at_rest(posterior)  # it is a copy
    assert not torch.equal(mean(X), posterior.model(X))
    with posterior.sample():
        torch.testing.assert_close(posterior.plain_model()(X), _resting(posterior))


def _resting(posterior):
    with posterior.mean():
        return posterior.model(X)


def test_moving_the_posterior_moves_the_model():
    posterior = _posterior()
    assert posterior.to(torch.bfloat16) is posterior
    assert posterior.model[0].weight.dtype == torch.bfloat16
    assert posterior.mu.dtype == posterior.rho.dtype == torch.float32


def test_a_pickled_posterior_is_a_copy():
    posterior = _posterior()
    again = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(again.model(X), posterior.model(X))
    with torch.no_grad():
        again.mu.add_(1)
    assert not torch.equal(again.model(X), posterior.model(X))
    assert torch.equal(
        bayesrnn.predict(pickle.loads(pickle.dumps(posterior)), X, seed=3).probs,
        bayesrnn.predict(posterior, X, seed=3).probs,
    )


def test_a_file_without_what_is_frozen(tmp_path):
    def fresh() -> nn.Sequential:
        model = _model()
        model[0].requires_grad_(False)
        return model

    posterior = bayesrnn.Posterior(fresh(), PRIOR)
    path, whole = tmp_path / "small.safetensors", tmp_path / "whole.safetensors"
    posterior.save(path, frozen=False)
    posterior.save(whole)
    assert path.stat().st_size < whole.stat().st_size
    names = load_file(path)
    assert not any("0." in name for name in names)
    again = bayesrnn.Posterior.load(path, fresh())
    assert torch.equal(again.model(X), posterior.model(X))
    assert torch.equal(again.rho, posterior.rho)
    with pytest.raises(ValueError, match="was saved without 'model.0.weight'"):
        bayesrnn.Posterior.load(path, nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Linear(4, 2)))


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="'weight' has no values yet.*load the weights, then"):
        bayesrnn.Posterior(model, PRIOR)


# ---------------------------------------------------------------------- loading


def _half_frozen(seed: int = 0) -> nn.Sequential:
    model = _model()
    torch.manual_seed(seed)
    nn.init.normal_(model[0].weight)
    model[0].requires_grad_(False)
    return model


def _trained_names(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize("sharpened", [False, True])
def test_what_was_frozen_is_frozen_after_loading(sharpened, tmp_path):
    saved = bayesrnn.Posterior(_half_frozen(), PRIOR, select=["2.*"])
    kind = bayesrnn.Sharpened if sharpened else bayesrnn.Posterior
    (bayesrnn.Sharpened(saved, loss_scale=1.0) if sharpened else saved).save(tmp_path / "p")
    model = _model()
    kind.load(tmp_path / "p", model)
    assert not any(p.requires_grad for p in model[0].parameters())
    assert _trained_names(model) == _trained_names(saved.model)
    bayesrnn.Posterior(_model(), PRIOR, select=["2.*"]).save(tmp_path / "q")
    model = _model()
    bayesrnn.Posterior.load(tmp_path / "q", model)
    assert all(p.requires_grad for p in model.parameters())


def test_names_to_freeze_that_no_posterior_could_have_are_refused(tmp_path):
    posterior = bayesrnn.Posterior(_half_frozen(), PRIOR)
    state = posterior.state_dict()
    for name in ("2.weight", "3.weight"):
        header = {**posterior.header(), "frozen": [name]}
        save_tensors(tmp_path / "p", state, header)
        model = _model()
        with pytest.raises(ValueError, match=f"damaged: '{name}' is no ordinary parameter"):
            bayesrnn.Posterior.load(tmp_path / "p", model)
        assert isinstance(model[2].weight, nn.Parameter)


def test_sigma_that_was_frozen_is_saved_with_the_rest(tmp_path):
    posterior = bayesrnn.Posterior(_half_frozen(), PRIOR)
    posterior.rho.requires_grad_(False)
    posterior.save(tmp_path / "p", frozen=False)
    again = bayesrnn.Posterior.load(tmp_path / "p", _half_frozen())
    assert torch.equal(again.rho, posterior.rho)


def test_a_file_without_what_is_frozen_knows_what_that_was(tmp_path):
    bayesrnn.Posterior(_half_frozen(), PRIOR).save(tmp_path / "p", frozen=False)
    bayesrnn.Posterior.load(tmp_path / "p", _half_frozen())  # without a warning
    other = _half_frozen(seed=1)
    with pytest.warns(UserWarning, match="2 tensors are not in this file and differ from those it"):
        bayesrnn.Posterior.load(tmp_path / "p", other)


def test_norms_that_were_left_out_are_still_said_to_be(tmp_path):
    posterior = bayesrnn.Posterior(Normed(), PRIOR)
    posterior.save(tmp_path / "p")
    assert repr(bayesrnn.Posterior.load(tmp_path / "p", Normed())) == repr(posterior)
    bayesrnn.Posterior(Normed(), PRIOR, select="first.*").save(tmp_path / "q")
    assert "left out" not in repr(bayesrnn.Posterior.load(tmp_path / "q", Normed()))


@pytest.mark.parametrize("kind", [bayesrnn.Posterior, bayesrnn.Sharpened])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda path, p: (path, Normed), r"model is the class Normed; build it: Normed\(\)"),
        (lambda path, p: (_model(), path), r"takes the file first: load\(file, Sequential"),
        (lambda path, p: (path, p), "model is a Posterior; pass the plain model"),
        (lambda path, p: (path, p.model), "this model is already Bayesian; pass a fresh one"),
    ],
    ids=["class", "swapped", "posterior", "wrapped"],
)
def test_what_cannot_be_loaded_into(kind, given, message, tmp_path):
    posterior = _posterior()
    bayesrnn.Sharpened(posterior, loss_scale=1.0).save(tmp_path / "p")
    with pytest.raises(ValueError, match=message):
        kind.load(*given(tmp_path / "p", posterior))


def test_a_file_of_torch_save_is_known_as_such(tmp_path):
    torch.save(_model().state_dict(), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"looks like a file of torch.save; use model.load_state_"):
        bayesrnn.Posterior.load(tmp_path / "w.pt", _model())


# ---------------------------------------------------------------------- what a posterior is not


def test_a_posterior_is_no_model_and_says_what_is():
    posterior = _posterior()
    with pytest.raises(TypeError, match=r"use posterior.model\(x\) .* bayesrnn.predict"):
        posterior(X)  # pyright: ignore
    for name in ("eval", "train"):
        with pytest.raises(AttributeError, match=rf"no '{name}'; call posterior.model.{name}\(\)"):
            getattr(posterior, name)
    with pytest.raises(
        AttributeError, match=r"no 'predict'; call bayesrnn.predict\(posterior, x\)"
    ):
        posterior.predict(X)  # pyright: ignore
    with pytest.raises(AttributeError, match="no 'anything'.$"):
        _ = posterior.anything  # pyright: ignore
    assert torch.equal(copy.deepcopy(posterior).mu, copy.copy(posterior).mu)
