"""Split conformal prediction covers what it says, also where the model is wrong."""

from __future__ import annotations

import math

import pytest
import torch

import bayesrnn

GENERATOR = torch.Generator()


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def _values(mean: torch.Tensor, sd: torch.Tensor) -> bayesrnn.Values:
    return bayesrnn.Values(mean[None], sd.square()[None])


def _series(n: int, wrong: float) -> tuple[bayesrnn.Values, torch.Tensor]:
    """Values with noise of their own sd, and predictions with a variance wrong by the factor `wrong`."""
    mean, sd = _noise(n), (0.5 * _noise(n)).exp()
    return _values(mean, sd * math.sqrt(wrong)), mean + sd * _noise(n)


@pytest.mark.parametrize("wrong", [1.0, 3.0, 1 / 3])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_cover_what_they_say(wrong, coverage):
    """Over 200 calibrations with n = 99 the mean coverage is exactly ceil(100 c) / 100."""
    GENERATOR.manual_seed(0)
    shares, tests = [], 200
    for _ in range(200):
        conformal = bayesrnn.calibrate(*_series(99, wrong), coverage)
        values, y = _series(tests, wrong)
        low, high = conformal.interval(values)
        shares.append(((low <= y) & (y <= high)).double().mean())
    share = torch.stack(shares).mean().item()
    # A calibration's coverage is Beta(k, n + 1 - k); the test set adds binomial noise.
    spread = coverage * (1 - coverage) * (1 / 101 + 1 / tests)
    assert abs(share - coverage) < 4 * math.sqrt(spread / 200)
    if wrong != 1:
        low, high = values.interval(coverage)
        own = ((low <= y) & (y <= high)).double().mean().item()
        assert abs(own - coverage) > 0.05  # the model's own intervals do not


def test_the_threshold_is_the_corrected_quantile():
    residuals = torch.tensor([3.0, 1.0, 2.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0])
    values = _values(torch.zeros(9), torch.full((9,), 2.0))
    nine = bayesrnn.calibrate(values, residuals, 0.9)  # the 9th of 9
    assert nine.threshold.item() == pytest.approx(4.5)
    half = bayesrnn.calibrate(values, -residuals, 0.5)  # the 5th of 9
    assert half.threshold.item() == pytest.approx(2.5)
    low, high = half.interval(_values(torch.ones(1), torch.ones(1)))
    assert (low.item(), high.item()) == pytest.approx((-1.5, 3.5))


def test_each_step_of_a_forecast_has_its_own_threshold():
    GENERATOR.manual_seed(1)
    scale = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None]

    def steps(n: int) -> tuple[bayesrnn.Values, torch.Tensor]:
        zero = torch.zeros(3, n, dtype=torch.float64)
        return _values(zero, zero + 1), scale * _noise(3, n)

    each = bayesrnn.calibrate(*steps(4000), 0.9, axis=0)
    assert (each.threshold / (1.645 * scale[:, 0]) - 1).abs().max() < 0.1
    values, y = steps(3000)
    low, high = each.interval(values)
    covered = ((low <= y) & (y <= high)).double().mean(1)
    assert (covered - 0.9).abs().max() < 0.03
    turned = bayesrnn.calibrate(_values(values.mean.T, values.mean.T + 1), y.T, 0.9, axis=-1)
    assert (turned.threshold / each.threshold - 1).abs().max() < 0.15
    turned_low, _ = turned.interval(_values(values.mean.T, values.mean.T + 1))
    assert turned_low.shape == (3000, 3)
    assert torch.equal(turned_low[0], -turned.threshold)
    together = bayesrnn.calibrate(*steps(4000), 0.9)
    low, high = together.interval(values)
    covered = ((low <= y) & (y <= high)).double().mean(1)
    assert covered[0] > 0.97
    assert covered[2] < 0.8
    with pytest.raises(
        ValueError,
        match="along axis 0; these predictions have 2.*of the steps: 0, or 1 with batch_first",
    ):
        each.interval(_values(torch.zeros(2, 5), torch.ones(2, 5)))


def _classes(n: int, wrong: float) -> tuple[bayesrnn.Categorical, torch.Tensor]:
    logits = 2 * _noise(n, 5)
    y = torch.distributions.Categorical(logits=logits).probs.multinomial(1, generator=GENERATOR)
    log_probs = (wrong * logits).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return bayesrnn.Categorical(log_probs, entropy, entropy, 1), y[:, 0]


@pytest.mark.parametrize("wrong", [1.0, 3.0])
def test_sets_of_classes_cover_what_they_say(wrong):
    GENERATOR.manual_seed(2)
    shares = []
    for _ in range(200):
        conformal = bayesrnn.calibrate(*_classes(99, wrong), 0.8)
        prediction, y = _classes(200, wrong)
        mask = conformal.classes(prediction)
        assert mask.shape == (200, 5)
        assert mask.dtype == torch.bool
        shares.append(mask.gather(-1, y[:, None]).double().mean())
    share = torch.stack(shares).mean().item()
    assert abs(share - 0.8) < 4 * math.sqrt(0.16 * (1 / 101 + 1 / 200) / 200)
    # Every set is the classes above one probability.
    inside, outside = prediction.probs[mask].min(), prediction.probs[~mask].max()
    assert inside > outside


def test_too_few_points_say_how_many_it_takes():
    values = _values(torch.zeros(4, 8), torch.ones(4, 8))
    for coverage, needed in ((0.9, 9), (0.95, 19), (0.99, 99)):
        with pytest.raises(ValueError, match=f"8 calibration .* takes {needed} or more at each"):
            bayesrnn.calibrate(values, torch.ones(4, 8), coverage, axis=0)
        enough = _values(torch.zeros(needed), torch.ones(needed))
        assert bayesrnn.calibrate(enough, torch.ones(needed), coverage).threshold == 1
        with pytest.raises(ValueError, match=f"{needed - 1} calibration"):
            bayesrnn.calibrate(
                _values(torch.zeros(needed - 1), torch.ones(needed - 1)),
                torch.ones(needed - 1),
                coverage,
            )


def test_bad_calibrations():
    values = _values(torch.zeros(50), torch.ones(50))
    with pytest.raises(ValueError, match="coverage=90"):
        bayesrnn.calibrate(values, torch.ones(50), 90)
    with pytest.raises(ValueError, match=r"target has shape \(50, 1\)"):
        bayesrnn.calibrate(values, torch.ones(50, 1))
    with pytest.raises(ValueError, match="sd is 0"):
        bayesrnn.calibrate(_values(torch.zeros(50), torch.zeros(50)), torch.ones(50))
    with pytest.raises(ValueError, match="nan"):
        bayesrnn.calibrate(values, torch.full((50,), torch.nan))


def test_short_representations():
    values = _values(torch.zeros(2, 9), torch.ones(2, 9))
    y = torch.tensor([[1.5], [2.5]]).expand(2, 9)
    assert repr(bayesrnn.calibrate(values, y)) == "ConformalIntervals(90%: mean +- 2.5 sd)"
    each = bayesrnn.calibrate(values, y, axis=0)
    assert repr(each) == "ConformalIntervals(90%: mean +- 1.5 to 2.5 sd)"
    log_probs = torch.tensor([0.25, 0.75]).log().expand(9, 2)
    prediction = bayesrnn.Categorical(log_probs, torch.ones(9), torch.ones(9), 1)
    found = bayesrnn.calibrate(prediction, torch.zeros(9, dtype=torch.long))
    assert repr(found) == "ConformalClasses(90%: classes of probability 0.25 or more)"
    assert found.classes(prediction).all()  # the threshold is inside
