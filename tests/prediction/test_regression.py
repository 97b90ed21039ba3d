"""The quality of predicted values: calibrated, too wide, and without a noise model."""

from __future__ import annotations

import json
import math

import pytest
import torch

import bayesrnn
from bayesrnn.evaluation.regression import COVERAGES, summarise

GENERATOR = torch.Generator().manual_seed(0)
MEAN = torch.randn(4000, 2, generator=GENERATOR)
Y = MEAN + 2 * torch.randn(4000, 2, generator=GENERATOR)


def _predicted(sd: float, bias: float = 0.0) -> bayesrnn.Values:
    return bayesrnn.Values(MEAN[None] + bias, torch.full_like(MEAN[None], sd**2))


def test_a_calibrated_model():
    found = summarise(_predicted(2.0), Y)
    assert found.values == 8000
    assert found.nats == pytest.approx(math.log(2 * math.sqrt(2 * math.pi * math.e)), abs=0.03)
    assert found.crps == pytest.approx(2 / math.sqrt(math.pi), rel=0.03)  # E CRPS = sd / sqrt(pi)
    assert found.rmse == pytest.approx((Y - MEAN).double().square().mean().sqrt().item(), rel=1e-9)
    assert found.mae == pytest.approx((Y - MEAN).double().abs().mean().item(), rel=1e-9)
    for share in COVERAGES:
        assert found.coverage[share] == pytest.approx(share, abs=0.025)
    assert found.calibration_error < 0.01
    assert found.sharpness == pytest.approx(2 * 1.644854 * 2, rel=1e-5)


def test_coverage_is_that_of_the_intervals():
    values = _predicted(3.0, bias=0.5)
    found = summarise(values, Y)
    for share in COVERAGES:
        low, high = values.interval(share)
        inside = ((low <= Y) & (high >= Y)).double().mean().item()
        assert found.coverage[share] == pytest.approx(inside, abs=1e-3)


def test_wrong_models_score_worse():
    right, wide, biased = (summarise(_predicted(*a), Y) for a in ((2.0,), (6.0,), (2.0, 1.5)))
    assert wide.coverage[0.5] > 0.8
    assert wide.calibration_error > 0.1 < biased.calibration_error
    assert right.nats is not None
    for other in (wide, biased):
        assert other.nats is not None
        assert other.nats > right.nats + 0.1
        assert other.crps > 1.05 * right.crps
    assert wide.rmse == right.rmse < biased.rmse
    assert wide.sharpness == pytest.approx(3 * right.sharpness, rel=1e-4)
    # P(y <= mean + 2 z) - P(z' <= z) for z' of the true sd, averaged over the levels, by hand.
    normal = torch.distributions.Normal(0.0, 1.0)
    levels = torch.arange(1, 20) / 20
    expected = (normal.cdf(3 * normal.icdf(levels)) - levels).abs().mean().item()
    assert wide.calibration_error == pytest.approx(expected, abs=0.01)


def test_without_a_noise_model():
    values = bayesrnn.Values(MEAN[None], torch.zeros_like(MEAN[None]))
    found = summarise(values, Y)
    assert found.nats is None
    assert found.crps == pytest.approx(found.mae, rel=1e-6)
    assert found.coverage[0.95] == found.sharpness == 0
    assert json.loads(json.dumps(found.as_json()))["nats"] is None


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="y has shape"):
        summarise(_predicted(1.0), Y[:, :1])
