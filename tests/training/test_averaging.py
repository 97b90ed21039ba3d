"""Averaged weights against the obvious mean, and rho's learning rate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bayesrnn.cli import main
from bayesrnn.storage import load_tensors
from bayesrnn.tasks.language.trained import open_folder
from bayesrnn.training.averaging import STEPS_BETWEEN_UPDATES, WeightAverage
from bayesrnn.training.loop import Trainer
from bayesrnn.training.update import LARGEST_RHO_STEP


def _after(share: float, path: list[torch.Tensor]) -> WeightAverage:
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    average = WeightAverage([parameter], share)
    for weights in path:
        with torch.no_grad():
            parameter.copy_(weights)
        average.update()
    return average


@pytest.fixture
def path() -> list[torch.Tensor]:
    return list(torch.randn(12, 3, dtype=torch.float64))


def test_a_share_of_one_is_the_mean_of_all(path):
    (found,) = _after(1.0, path).averages
    torch.testing.assert_close(found, torch.stack(path).mean(0))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_in_between_has_the_weights_of_its_recursion(path, share):
    """Weights w_t enter with a_t prod_{s > t} (1 - a_s), where a_t = 1 / (1 + share (t - 1))."""
    steps = [1 / (1 + share * t) for t in range(len(path))]
    shares = [a * math.prod(1 - b for b in steps[t + 1 :]) for t, a in enumerate(steps)]
    assert sum(shares) == pytest.approx(1)
    expected = sum(s * weights for s, weights in zip(shares, path, strict=True))
    (found,) = _after(share, path).averages
    torch.testing.assert_close(found, expected)


def test_the_weights_come_back_after_an_error(path):
    average = _after(1.0, path)

    def fail_inside() -> None:
        with average.in_place():
            torch.testing.assert_close(average.parameters[0].detach(), torch.stack(path).mean(0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert torch.equal(average.parameters[0].detach(), path[-1])


def test_what_is_measured_and_kept_is_the_average(new_trainer, tmp_path):
    trainer = new_trainer("run", "lstm", average=0.5)
    for _ in trainer.run():
        pass
    assert trainer.average is not None
    kept, _ = load_tensors(tmp_path / "run" / "weights.safetensors")
    names = list(trainer.method.weights())
    for name, average, last in zip(
        names, trainer.average.averages, trainer.method.parameters(), strict=True
    ):
        assert torch.equal(kept[name], average)
        assert not torch.equal(kept[name], last)
    model = open_folder(tmp_path / "run")
    (line,) = trainer.run_folder.read_metrics("epoch")
    _, valid = trainer.task.validate(model.method)
    assert line["valid_perplexity"] == valid["valid_perplexity"]


def test_an_epoch_of_few_steps_is_averaged_too(new_trainer):
    trainer = new_trainer("run", "lstm", average=0.1, unroll=300, epochs=2)
    assert len(trainer.task) < STEPS_BETWEEN_UPDATES
    for _ in trainer.run():
        pass
    first, second = trainer.run_folder.read_metrics("epoch")
    assert first["valid_perplexity"] != second["valid_perplexity"]


def _movement_of_rho(trainer: Trainer) -> tuple[float, float]:
    """The mean change of rho over several steps, and its largest change in a single step."""
    rho = trainer.method.rho()
    assert rho is not None
    begin = before = rho.detach().clone()
    largest = 0.0
    for step, _ in enumerate(trainer.run()):
        largest = max(largest, (rho.detach() - before).abs().max().item())
        before = rho.detach().clone()
        trainer.stop = step == 30
    return (before - begin).abs().mean().item(), largest


def test_rho_moves_faster_but_in_limited_steps(new_trainer):
    plain, _ = _movement_of_rho(new_trainer("1", "bbb", rho_lr=1.0))
    faster, largest = _movement_of_rho(new_trainer("1e4", "bbb", rho_lr=1e4))
    assert faster > 10 * plain
    assert largest == pytest.approx(LARGEST_RHO_STEP, rel=1e-3)  # reached, and not exceeded


def test_sgld_has_no_average(text_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--method", "sgld", "--average", "0.5", "--run", str(tmp_path / "run")])
    assert "average = 0.5 must be 0 for sgld" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
