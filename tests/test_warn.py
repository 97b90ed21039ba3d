"""Every warning of the library points at the line of the user that caused it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrnn
from bayesrnn.kernels import one_pass, passes

PRIOR = bayesrnn.Normal(1.0)
X = torch.linspace(-1, 1, 12).view(4, 3)


def _posterior(model: nn.Module | None = None) -> bayesrnn.Posterior:
    return bayesrnn.Posterior(nn.Linear(3, 2) if model is None else model, PRIOR)


def _unused_gradient(_: Path, __: pytest.MonkeyPatch) -> None:
    posterior = _posterior()
    for _ in range(2):
        with posterior.sample():
            posterior.model(X).sum().backward()


def _optimiser_made_too_early(_: Path, __: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    posterior = _posterior(model)
    posterior.backward(lambda: model(X).sum(), kl_weight=0.1)
    optimizer.step()


def _early_optimiser_with_a_scheduler(_: Path, __: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which wraps step()
    posterior = _posterior(model)
    posterior.backward(lambda: model(X).sum(), kl_weight=0.1)
    optimizer.step()


def _backward_at_the_mean(_: Path, __: pytest.MonkeyPatch) -> None:
    model = _posterior().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()


def _state_without_rho(_: Path, __: pytest.MonkeyPatch) -> None:
    _posterior().model.load_state_dict(nn.Linear(3, 2).state_dict(), strict=False)


def _file_without_rho(folder: Path, _: pytest.MonkeyPatch) -> None:
    safetensors.torch.save_model(nn.Linear(3, 2), folder / "plain.safetensors")
    safetensors.torch.load_model(_posterior().model, folder / "plain.safetensors", strict=False)


def _loader_that_shuffles(_: Path, __: pytest.MonkeyPatch) -> None:
    loader = DataLoader(TensorDataset(X), batch_size=4, shuffle=True)
    bayesrnn.predict(_posterior(), loader, samples=1)


def _values_of_a_loader_that_shuffles(_: Path, __: pytest.MonkeyPatch) -> None:
    loader = DataLoader(TensorDataset(X), batch_size=4, shuffle=True)
    bayesrnn.predict_values(_posterior(), loader, samples=1)


def _wrapped_again(_: Path, __: pytest.MonkeyPatch) -> None:
    bayesrnn.Posterior(_posterior().model, PRIOR)


def _another_body(folder: Path, _: pytest.MonkeyPatch) -> None:
    body, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)
    _posterior(nn.Sequential(body, head)).save(folder / "head", frozen=False)
    bayesrnn.Posterior.load(folder / "head", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))


def _forecast_without_a_variance(_: Path, __: pytest.MonkeyPatch) -> None:
    bayesrnn.forecast(_posterior(nn.Linear(1, 1)), torch.zeros(4, 2, 1), 3, samples=2)


def _streams_shorter_than_a_chunk(_: Path, __: pytest.MonkeyPatch) -> None:
    bayesrnn.Cuts(torch.zeros(17), num_streams=16, unroll=48)


def _no_compiler(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    monkeypatch.setattr(passes._sample_, "_compiled", {})
    monkeypatch.setattr(torch, "compile", _fails)
    with _posterior().sample():
        pass


def _fails(*_: object, **__: object) -> None:
    raise torch._inductor.exc.InvalidCxxCompiler()


CAUSES = [
    (_unused_gradient, "was never used"),
    (_optimiser_made_too_early, "made before the model became Bayesian"),
    (_early_optimiser_with_a_scheduler, "made before the model became Bayesian"),
    (_backward_at_the_mean, "went backward at the mean"),
    (_state_without_rho, "this state has no posterior_rho"),
    (_file_without_rho, "this state has no posterior_rho"),
    (_loader_that_shuffles, "shuffle=False"),
    (_values_of_a_loader_that_shuffles, "shuffle=False"),
    (_wrapped_again, "already Bayesian: sigma starts anew"),
    (_another_body, "differ from those it was saved with"),
    (_forecast_without_a_variance, "the paths carry no noise"),
    (_streams_shorter_than_a_chunk, "shorter than unroll=48"),
    (_no_compiler, "torch.compile does not work here"),
]


@pytest.mark.parametrize(("cause", "message"), CAUSES, ids=[c.__name__ for c, _ in CAUSES])
def test_a_warning_points_at_the_users_line(
    cause: Callable[[Path, pytest.MonkeyPatch], None], message, tmp_path, monkeypatch
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cause(tmp_path, monkeypatch)
    assert [message in str(warning.message) for warning in caught] == [True]
    assert caught[0].filename == __file__
    first = cause.__code__.co_firstlineno
    assert first < caught[0].lineno < first + 11
    assert caught[0].category is UserWarning


def test_every_warning_has_a_cause_above():
    package = Path(bayesrnn.__file__).parent
    texts = {file.name: file.read_text() for file in package.rglob("*.py")}
    assert [name for name, text in texts.items() if "warnings.warn(" in text] == ["warn.py"]
    places = sum(len(re.findall(r"(?<!\w)warn\(", text)) for text in texts.values())
    defined_and_sent_on = 2
    assert places - defined_and_sent_on == len({message for _, message in CAUSES})
