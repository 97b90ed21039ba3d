"""Two processes of torch.distributed: the gradients of the whole batch, or an error with its cure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import bayesrnn

WORLD = 2
X = torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3).sin()
Y = X[:, :2].cos()
PRIOR = bayesrnn.Normal(1.0)
NOISE_DRAWS = 600

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no torch.distributed"
)


def _model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def _train(
    call: Callable[[Tensor], Tensor],
    posterior: bayesrnn.Posterior,
    rows: slice,
    average: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """Three steps on some rows, the noise of each step the same in every process; the first gradients too."""
    optimizer = torch.optim.SGD(posterior.parameters(), lr=0.1)
    first = {}
    for step in range(3):
        optimizer.zero_grad()
        with posterior.sample(generator=torch.Generator().manual_seed(step)) as draw:
            (call(X[rows]) - Y[rows]).square().mean().backward()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        average()
        if step == 0:
            grads = {f"gradient of {n}": p.grad for n, p in posterior.model.named_parameters()}
            first = {n: g.clone() for n, g in grads.items() if g is not None}
        optimizer.step()
    return {**first, **{n: p.detach().clone() for n, p in posterior.model.named_parameters()}}


def _sharpened(rows: slice, average: bool) -> dict[str, Tensor]:
    posterior = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.3)
    # A mean over half as many rows: the scale of a nat is that of the rows a process has.
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=1 / 8)
    sharpened.backward(
        lambda: (posterior.model(X[rows]) - Y[rows]).square().mean(),
        kl_weight=0.1,
        generator=torch.Generator().manual_seed(0),
    )
    if average:
        posterior.all_reduce_grads()
    return {n: p.grad.clone() for n, p in posterior.model.named_parameters() if p.grad is not None}


def _refused(work: Callable[[], object]) -> str:
    try:
        work()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def _own_noise(rank: int) -> Tensor:
    """Gradients of a linear model, averaged over the processes, each with noise of its own."""
    posterior = bayesrnn.Posterior(nn.Linear(3, 2).double(), PRIOR, sigma_init=0.3)
    with torch.no_grad():
        posterior.mu.copy_(torch.linspace(-0.5, 0.5, 8))
    generator = torch.Generator().manual_seed(100 + rank)
    found = []
    for _ in range(NOISE_DRAWS):
        posterior.model.zero_grad()
        with posterior.sample(generator=generator) as draw:
            (posterior.model(X[rank::WORLD]) - Y[rank::WORLD]).square().mean().backward()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        posterior.all_reduce_grads()
        assert posterior.mu.grad is not None
        assert posterior.rho.grad is not None
        found.append(torch.cat([posterior.mu.grad, posterior.rho.grad]).clone())
    return torch.stack(found)


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    rows = slice(rank, None, WORLD)
    found: dict[str, object] = {}
    for select in (None, "0.*"):
        # Started apart: DistributedDataParallel gives all the weights of the first.
        posterior = bayesrnn.Posterior(_model(rank), PRIOR, select=select, sigma_init=0.3)
        with torch.no_grad():
            posterior.rho.add_(rank)
        wrapped = DistributedDataParallel(posterior.model)
        found[f"ddp {select}"] = _train(wrapped, posterior, rows)
        posterior = bayesrnn.Posterior(_model(), PRIOR, select=select, sigma_init=0.3)
        found[f"all_reduce {select}"] = _train(
            posterior.model, posterior, rows, posterior.all_reduce_grads
        )
    found["sharpened"] = _sharpened(rows, average=True)

    posterior = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.3)
    wrapped = DistributedDataParallel(posterior.model)
    for number, part in enumerate((slice(rank, 4, WORLD), slice(4 + rank, None, WORLD))):
        with posterior.sample(generator=torch.Generator().manual_seed(0)) as draw:
            loss = (wrapped(X[part]) - Y[part]).square().mean() / 2
            if number == 0:
                with wrapped.no_sync():
                    loss.backward()
                    posterior.accumulate_grad(draw, kl_weight=0.05)
            else:
                loss.backward()
        if number:
            posterior.accumulate_grad(draw, kl_weight=0.05)
    found["in two parts"] = {
        f"gradient of {n}": p.grad for n, p in posterior.model.named_parameters()
    }

    for setting in ("find_unused_parameters", "static_graph"):
        posterior = bayesrnn.Posterior(_model(), PRIOR)
        found[setting] = _refused(
            lambda p=posterior, s=setting: _train(
                DistributedDataParallel(p.model, **{s: True}), p, rows
            )
        )
    posterior = bayesrnn.Posterior(_model(), PRIOR)
    twice = bayesrnn.Sharpened(posterior, loss_scale=1.0)
    wrapped = DistributedDataParallel(posterior.model)
    found["twice"] = _refused(lambda: twice.backward(lambda: wrapped(X).sum(), kl_weight=0.1))
    apart = bayesrnn.Posterior(_model(rank), PRIOR, sigma_init=0.3)
    found["apart"] = _refused(apart.all_reduce_grads)
    found["own noise"] = _own_noise(rank)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each of two processes found."""
    folder: Path = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(_work, args=(str(folder),), nprocs=WORLD)  # pyright: ignore
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def _close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("select", [None, "0.*"])
@pytest.mark.parametrize("way", ["ddp", "all_reduce"])
def test_with_equal_noise_two_processes_are_one_with_the_whole_batch(found, way, select):
    posterior = bayesrnn.Posterior(_model(), PRIOR, select=select, sigma_init=0.3)
    expected = _train(posterior.model, posterior, slice(None))
    for one in found:
        _close(one[f"{way} {select}"], expected)


def test_gradients_accumulated_without_sync_are_averaged_in_the_end(found):
    posterior = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.3)
    with posterior.sample(generator=torch.Generator().manual_seed(0)) as draw:
        (posterior.model(X) - Y).square().mean().backward()
    posterior.accumulate_grad(draw, kl_weight=0.1)
    grads = {f"gradient of {n}": p.grad for n, p in posterior.model.named_parameters()}
    for one in found:
        _close(one["in two parts"], grads)


def test_sharpening_in_two_processes_averages_kappa_too(found):
    halves = [_sharpened(slice(rank, None, WORLD), average=False) for rank in range(WORLD)]
    assert "posterior_kappa" in halves[0]
    mean = {name: (halves[0][name] + halves[1][name]) / 2 for name in halves[0]}
    for one in found:
        _close(one["sharpened"], mean)


def test_noise_of_its_own_in_each_process_is_unbiased(found):
    assert torch.equal(found[0]["own noise"], found[1]["own noise"])  # the average is common
    posterior = bayesrnn.Posterior(nn.Linear(3, 2).double(), PRIOR, sigma_init=0.3)
    mu = torch.linspace(-0.5, 0.5, 8, dtype=torch.float64).requires_grad_()
    rho = posterior.rho.detach().clone().requires_grad_()
    sigma = nn.functional.softplus(rho)
    # The mean over noise of a squared error in closed form: the variance of each output is added.
    weight, bias = mu[:6].view(2, 3), mu[6:]
    variance = X.square() @ sigma[:6].square().view(2, 3).T + sigma[6:].square()
    loss = ((X @ weight.T + bias - Y).square() + variance).mean()
    q, p = (torch.distributions.Normal(*moments) for moments in ((mu, sigma), (0.0, 1.0)))
    energy = loss + 0.1 * torch.distributions.kl_divergence(q, p).sum()
    expected = torch.cat(torch.autograd.grad(energy, [mu, rho]))
    draws = found[0]["own noise"]
    z = (draws.mean(0) - expected) / (draws.std(0) / NOISE_DRAWS**0.5)
    assert z.abs().max() < 4.5, z
    assert z.square().mean() < 2.2, z


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("find_unused_parameters", r"DistributedDataParallel\(find_unused_parameters=True\)"),
        ("static_graph", r"\(static_graph=True\) would leave out the gradients of mu and rho"),
        ("twice", "cannot follow.*all_reduce_grads"),
        ("apart", "the processes have different mu.*the same seed"),
    ],
)
def test_what_would_be_wrong_is_refused_in_every_process(found, what, message):
    for one in found:
        assert re.search(message, one[what]), one[what]


def test_in_one_process_there_is_nothing_to_average():
    posterior = bayesrnn.Posterior(_model(), PRIOR)
    posterior.backward(lambda: posterior.model(X).sum(), kl_weight=0.1)
    assert posterior.mu.grad is not None
    before = posterior.mu.grad.clone()
    posterior.all_reduce_grads()
    assert torch.equal(posterior.mu.grad, before)


def test_one_process_in_distributed_data_parallel_is_as_without(tmp_path):
    plain = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.3)
    expected = _train(plain.model, plain, slice(None))
    distributed.init_process_group("gloo", f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        posterior = bayesrnn.Posterior(_model(), PRIOR, sigma_init=0.3)
        found = _train(DistributedDataParallel(posterior.model), posterior, slice(None))
        wrapped = DistributedDataParallel(posterior.model, find_unused_parameters=True)
        with pytest.raises(ValueError, match="set it to False"), posterior.sample():
            wrapped(X)
    finally:
        distributed.destroy_process_group()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_hooks_on_the_posterior_are_called():
    posterior = bayesrnn.Posterior(_model(), PRIOR)
    called = []
    posterior.mu.register_hook(lambda grad: 2 * grad)
    posterior.mu.register_post_accumulate_grad_hook(lambda p: called.append(p.grad.clone()))

    def gradient() -> Tensor:
        posterior.model.zero_grad()
        generator = torch.Generator().manual_seed(0)
        posterior.backward(
            lambda: posterior.model(X).square().sum(), kl_weight=0.1, generator=generator
        )
        assert posterior.mu.grad is not None
        return posterior.mu.grad

    hooked = gradient()
    assert torch.equal(called[0], hooked)
    plain = bayesrnn.Posterior(_model(), PRIOR)
    plain.backward(
        lambda: plain.model(X).square().sum(),
        kl_weight=0.1,
        generator=torch.Generator().manual_seed(0),
    )
    assert plain.mu.grad is not None
    assert torch.equal(hooked, 2 * plain.mu.grad)
