"""Calibration against torchmetrics on whole distributions, brute force, and a model that is calibrated."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_calibration_error

from bayesrnn.tasks.language.evaluation.calibration import calibration
from tests.tasks.language.test_uncertainty import Table, _rows, _text


def test_against_the_obvious_way():
    tables, tokens = [_rows(seed) for seed in range(3)], _text(997)
    found = calibration([Table(table) for table in tables], tokens, 11, streams=3)
    probs = torch.stack([table[tokens[:-1]] for table in tables]).mean(0)
    y = tokens[1:]
    brier = (probs - F.one_hot(y, 11)).square().sum(-1).mean()
    assert found.words == 997
    assert found.brier == pytest.approx(brier.item(), rel=1e-5)
    assert found.accuracy == pytest.approx((probs.argmax(-1) == y).float().mean().item())
    assert found.nats == pytest.approx(-probs.gather(1, y[:, None]).log().mean().item(), rel=1e-5)
    error = multiclass_calibration_error(probs, y, num_classes=11, n_bins=15)
    assert found.calibration_error == pytest.approx(error.item(), abs=1e-6)
    by_bins = sum(b.words * abs(b.accuracy - b.confidence) for b in found.bins) / 997
    assert by_bins == pytest.approx(error.item(), abs=1e-6)
    assert sum(b.words for b in found.bins) == 997
    for b in found.bins:
        assert b.low < b.confidence <= b.high + 1e-9


def test_a_model_that_made_the_text_is_calibrated():
    table = (3 * _rows(1).log()).softmax(-1)
    generator = torch.Generator().manual_seed(0)
    words = [0]
    for _ in range(20_000):
        words.append(int(torch.multinomial(table[words[-1]], 1, generator=generator)))
    tokens = torch.tensor(words)
    honest = calibration([Table(table)], tokens, 11)
    boastful = calibration([Table((3 * table.log()).softmax(-1))], tokens, 11)
    assert honest.calibration_error < 0.015
    assert boastful.calibration_error > 0.2
    assert boastful.confidence > boastful.accuracy + 0.2
    assert honest.nats < boastful.nats
    assert honest.brier < boastful.brier
