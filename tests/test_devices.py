"""Any device: a whole training step with no tensor, random number or reading of one elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesrnn import devices, methods
from bayesrnn.cli import main
from bayesrnn.kernels import lstm, precision
from bayesrnn.tasks.captions.config import preset as captions_preset
from bayesrnn.tasks.digits.config import DigitsConfig
from bayesrnn.tasks.language.config import preset
from bayesrnn.training import randomness
from bayesrnn.training.experiment import Prepared, experiment
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run

META = torch.device("meta")


class OnlyOn(TorchDispatchMode):
    """Inside the block an operation that makes a tensor on another device raises an error."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.device != self.device:
                raise AssertionError(f"{func} made a tensor on {value.device}")
        return result


def test_the_mode_notices_what_it_should():
    with OnlyOn(META):
        torch.ones(2, device=META) * 2
        with pytest.raises(AssertionError, match="made a tensor on cpu"):
            torch.tensor(1.0)
    with pytest.raises(RuntimeError, match="meta"):
        torch.ones(1, device=META).item()


class _NoGenerator:
    """There are no generators of the meta device: its random numbers are none."""

    def get_state(self) -> Tensor:
        return torch.zeros(0)


def _prepared(task: str, method: str, **changes: Any) -> Prepared:
    if task == "language":
        config = preset("tiny", method, hidden=8, batch_size=4, train_words=2000)
    elif task == "mnist":
        config = DigitsConfig(method=method, hidden=8, epochs=1)
    else:
        config = captions_preset("shapes", method, hidden=8, embedding=8)
    return experiment(task).prepare(replace(config, **changes), None)


CASES = [
    (task, method) for task in ("language", "mnist", "captions") for method in methods.names(task)
]


@pytest.mark.parametrize(("task", "method"), CASES)
@pytest.mark.parametrize("changes", [{}, {"accumulate": 2, "precision": "bf16"}])
def test_a_step_stays_on_its_device(monkeypatch, task, method, changes):
    """Gradients, their norm, clipping, optimiser, noise after the step, average: all on the meta device, from
    which nothing can be read, so that a GPU would not be waited for either."""
    monkeypatch.setattr(randomness, "generator_on", lambda device, seed: _NoGenerator())
    monkeypatch.setattr(torch.optim, "SGD", partial(_unfused, torch.optim.SGD))
    if changes.get("precision") == "bf16":  # nor has autocast
        monkeypatch.setattr(precision, "multiplying_in", lambda name, device: OnlyOn(META))
    if task != "captions":  # whose images are encoded first
        monkeypatch.setattr(devices, "_current", META)
    average = 0.5 if methods.method(method).averages_weights else 0.0
    if task == "language" and not methods.method(method).one_rate:
        changes = {**changes, "rare_words": 0.5}
    ready = _prepared(task, method, average=average, optimizer="sgd", **changes)
    ready.method.model.to(META)
    trainer = Trainer(Run(Path("unused"), ready.config), ready.task, ready.method)
    trainer.random.noise = trainer.random.common = None  # type: ignore[assignment]
    watching = OnlyOn(META)

    def watched(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        with OnlyOn(META):
            return function(*arguments, **settings)

    def unwatched(function: Callable[..., Any], *arguments: Any) -> Any:
        watching.__exit__(None, None, None)
        try:
            return function(*arguments)
        finally:
            watching.__enter__()

    # Data come from elsewhere, at the beginning of an epoch or of a step; from then on nothing does.
    for name in ("begin_epoch", "step"):
        monkeypatch.setattr(ready.task, name, partial(unwatched, getattr(ready.task, name)))
    monkeypatch.setattr(ready.method, "step", partial(watched, ready.method.step))
    with watching:
        for _ in range(3):
            trainer._step()
    assert len(trainer._unread) == 3


def _unfused(kind: type[torch.optim.Optimizer], groups: Any, lr: float, fused: bool) -> Any:
    """The fused optimiser does not know the meta device."""
    assert fused
    return kind(groups, lr=lr, foreach=True)  # type: ignore[call-arg]


def test_best_device_and_names():
    best = devices.find_device("auto")
    assert (best.type == "cuda") == torch.cuda.is_available()
    assert devices.find_device("cpu") == torch.device("cpu")
    for name in ("gpu", "meta", "cpu:1", "cuda:x"):
        with pytest.raises(ValueError, match=re.escape(f"--device {name}: ")):
            devices.find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there(name, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--device", name, "--run", str(tmp_path / "run")])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"bayesrnn: --device {name}: .* finds no CUDA device here; .*cpu\.\n", said
    )
    assert not (tmp_path / "run").exists()


def test_cuda_under_torchrun_is_that_of_the_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert devices.find_device("auto") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert devices.find_device("cuda") == torch.device("cuda", 3)
    assert devices.find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="this machine has 4, cuda:0 to cuda:3"):
        devices.find_device("cuda:4")


def test_bf16_products_of_float32_weights():
    model = nn.Linear(64, 64)
    x = torch.randn(32, 64)
    with precision.multiplying_in("bf16", x.device):
        y = model(x)
    assert y.dtype == torch.bfloat16
    devices.in_float32(y).square().mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32
    with precision.multiplying_in("float32", x.device):
        assert model(x).dtype == torch.float32


@pytest.mark.parametrize("wide", [False, True], ids=["torch's LSTM", "own LSTM"])
@pytest.mark.parametrize("method", ["lstm", "dropout", "variational-dropout", "bbb", "sharpened"])
def test_bf16_trains_nearly_as_float32(method, wide, monkeypatch):
    if not wide and not lstm.torch_computes_bf16():
        pytest.skip("torch's LSTM needs a processor with AVX-512 for bf16")
    monkeypatch.setattr(lstm, "WIDE", 8 if wide else 9)
    losses = {}
    for name in ("float32", "bf16"):
        torch.manual_seed(0)  # of dropout's masks
        ready = _prepared("language", method, precision=name, average=0.0)
        trainer = Trainer(Run(Path("unused"), ready.config), ready.task, ready.method)
        for _ in range(12):
            trainer._step()
        losses[name] = trainer._at.nats / trainer._at.steps
        own = name == "bf16" and wide  # which carries its cells in float32
        dtypes = {tensor.dtype for tensor in ready.task.carried().values()}
        assert (len(dtypes) == 2) == own
    assert losses["bf16"] != losses["float32"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.01)


def test_exact_sharpening_differentiates_the_own_lstm_twice(monkeypatch):
    monkeypatch.setattr(lstm, "WIDE", 8)
    gradients = {}
    for name in ("float32", "bf16"):
        ready = _prepared("language", "sharpened", precision=name, exact=True, average=0.0)
        trainer = Trainer(Run(Path("unused"), ready.config), ready.task, ready.method)
        trainer._gradients()
        posterior = ready.method.posterior
        assert posterior is not None
        gradients[name] = posterior.rho.grad
    error = (gradients["bf16"] - gradients["float32"]).norm() / gradients["float32"].norm()
    assert 0 < error < 0.02
