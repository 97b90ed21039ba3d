"""Files that version 0.1.0 wrote, before mu and rho belonged to the model: read as they are, ever after."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.cli import main

OLD = Path(__file__).parent / "fixtures" / "version-0.1.0"


def _model() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))


def _rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_posterior_file():
    posterior = bayesrnn.Posterior.load(OLD / "posterior.safetensors", _model())
    assert posterior.prior == bayesrnn.ScaleMixture(0.25, 0.5, 0.01)
    assert [slot.name for slot in posterior.layout] == ["0.weight", "1.weight"]
    assert posterior.kl_gradient == "sampled"  # the default then
    assert posterior.sigma_temperature == 1


def test_a_sharpened_file():
    sharpened = bayesrnn.Sharpened.load(OLD / "sharpened.safetensors", _model())
    alone = bayesrnn.Posterior.load(OLD / "sharpened.safetensors", _model())
    assert torch.equal(sharpened.posterior.mu, alone.mu)
    assert sharpened.loss_scale == 0.5
    assert not torch.equal(sharpened.kappa, torch.full_like(sharpened.kappa, 0.5))  # it was trained


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")  # their text is named by a relative path
    return tmp_path / "old"


@pytest.mark.parametrize("method", ["bbb", "sharpened", "sgld", "dropout"])
def test_a_run_predicts_as_it_did(method, runs, capsys):
    right = [row for row in _rows((runs / "expected.jsonl").read_text()) if row["run"] == method]
    arguments = ["evaluate", method, "--dynamic", "--json"]
    arguments += [] if method == "sgld" else ["--samples", "3"]
    arguments += ["--sharpened"] if method == "sharpened" else []
    main(arguments)
    found = _rows(capsys.readouterr().out)
    assert [row["way"] for row in found] == [row["way"] for row in right]
    for ours, theirs in zip(found, right, strict=True):
        assert ours["perplexity"] == pytest.approx(theirs["perplexity"], rel=1e-4), ours["way"]


@pytest.mark.parametrize("method", ["bbb", "sharpened", "sgld", "dropout"])
def test_a_run_is_resumed(method, runs, capsys):
    main(f"train --resume --run {method} --epochs 7 --no-tensorboard --json".split())
    (last,) = _rows(capsys.readouterr().out)
    assert last["epoch"] == 7
    lines = _rows((runs / method / "metrics.jsonl").read_text())
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2, 3, 4, 5, 6, 7]


def test_a_run_of_digits(runs, capsys):
    pytest.importorskip("sklearn")
    (right,) = json.loads((runs / "expected-mnist.json").read_text())
    main(["compare", "mnist", "--samples", "2", "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    for name in ("test_error", "test_nats", "test_error_samples", "test_nats_samples"):
        assert found[name] == pytest.approx(right[name], rel=1e-4), name
    main(["mnist", "--resume", "--run", "mnist", "--epochs", "2", "--no-tensorboard", "--json"])
    assert json.loads(capsys.readouterr().out)["epoch"] == 2


def test_a_run_whose_files_know_each_other(tmp_path, monkeypatch, capsys):
    """Written when weights and checkpoints began to name the settings, vocabulary and data they belong to."""
    shutil.copytree(OLD.parent / "bound-run", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    main(["verify", "run"])
    capsys.readouterr()
    main(["evaluate", "run", "--json"])
    (row,) = _rows(capsys.readouterr().out)
    assert row["perplexity"] == pytest.approx(10.021086846919996, rel=1e-4)
    main(["train", "--resume", "--run", "run", "--epochs", "3", "--no-tensorboard"])
    assert "epoch   3" in capsys.readouterr().out
    main(["verify", "run"])
