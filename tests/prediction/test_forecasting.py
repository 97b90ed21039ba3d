"""Forecasts: paths against a loop by hand, and bands against processes whose variance is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.ensemble import sample_generators

PRIOR = bayesrnn.Normal(1.0)
SD = 0.5


class Walk(nn.Module):
    """The next value is this one, and noise of sd 0.5; without a state. `weight` is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        mean = self.weight * x
        return mean, torch.full_like(mean, SD**2)


class Recurrent(nn.Module):
    """Mean and variance of the next value, (T, N) from (T, N, 1)."""

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 6, batch_first=batch_first)
        self.out = nn.Linear(6, 2)

    def forward(self, x, state=None):
        output, state = self.lstm(x, state)
        mean, log_variance = self.out(output).unbind(-1)
        return mean, log_variance.exp(), state


class Forgetful(Recurrent):
    """The same, and does not return its state."""

    def forward(self, x):
        return super().forward(x)[:2]


def _walk(sigma: float = 1e-6) -> bayesrnn.Posterior:
    return bayesrnn.Posterior(Walk(), PRIOR, sigma_init=sigma)


def _recurrent(kind: type[Recurrent] = Recurrent, batch_first: bool = False) -> bayesrnn.Posterior:
    torch.manual_seed(0)
    return bayesrnn.Posterior(kind(batch_first), PRIOR, sigma_init=0.3)


def test_the_variance_of_a_random_walk_grows_and_feeding_the_mean_back_hides_it():
    posterior, x, steps = _walk(), torch.tensor([[[0.0], [3.0]]]), 12
    ahead = bayesrnn.forecast(posterior, x, steps, samples=40, paths_per_sample=50)
    right = SD**2 * torch.arange(1, steps + 1)[:, None, None].expand(steps, 2, 1)
    assert ((ahead.variance - right).abs() < 5 * right * math.sqrt(2 / 2000)).all()
    assert ((ahead.mean - x[-1]).abs() < 5 * (right / 2000).sqrt()).all()
    assert ahead.epistemic.max() < 0.05 * ahead.variance.max()
    low, high = ahead.interval(0.9)
    width = 2 * 1.645 * right.sqrt()
    assert ((high - low) / width - 1).abs().max() < 0.1
    # The trap: one step at a time, the mean fed back.
    value = x
    for _ in range(steps):
        values = bayesrnn.predict_values(posterior, value, samples=40)
        value = values.mean
    torch.testing.assert_close(values.variance, torch.full_like(value, SD**2), rtol=1e-4, atol=0)


def test_the_weights_part_of_an_autoregression_grows():
    """x' = w x + e with w ~ N(1, 0.01): after two steps Var E[x | w] = Var w^2, the rest is noise."""
    ahead = bayesrnn.forecast(
        _walk(0.1), torch.full((1, 1, 1), 4.0), 2, samples=1500, paths_per_sample=8
    )
    # E w^2 = 1.01 and Var w^2 = 2 s^4 + 4 s^2 for s = 0.1.
    epistemic = torch.tensor([16 * 0.01, 16 * (2 * 0.1**4 + 4 * 0.1**2)])
    aleatoric = torch.tensor([SD**2, SD**2 * (1 + 1.01)])
    assert (ahead.epistemic.flatten() / epistemic - 1).abs().max() < 5 * math.sqrt(2 / 1500)
    assert (ahead.aleatoric.flatten() / aleatoric - 1).abs().max() < 0.05
    torch.testing.assert_close(ahead.variance, ahead.aleatoric + ahead.epistemic)


def test_noise_is_not_taken_for_uncertainty_of_the_weights():
    """Also with two paths of a sample, whose mean is noisy."""
    ahead = bayesrnn.forecast(_walk(), torch.zeros(1, 1, 1), 4, samples=1000, paths_per_sample=2)
    assert (ahead.epistemic / ahead.variance).max() < 0.12


def test_paths_against_a_loop_by_hand():
    posterior, x = _recurrent(), torch.randn(5, 2, 1)
    ahead = bayesrnn.forecast(posterior, x, 4, samples=3, seed=7)
    assert ahead.paths.shape == ahead.means.shape == (3, 4, 2)
    for s, generator in enumerate(sample_generators(3, 7, x.device)):
        with posterior.sample(generator=generator), torch.no_grad():
            given, state = x, None
            for step in range(4):
                mean, variance, state = posterior.model(given, state)
                torch.testing.assert_close(ahead.means[s, step], mean[-1])
                torch.testing.assert_close(ahead.variances[s, step], variance[-1])
                given = ahead.paths[s, step][None, :, None]  # the path's own value
    noise = (ahead.paths - ahead.means) / ahead.variances.sqrt()
    assert noise.abs().max() < 5
    assert 0.4 < noise.std() < 2
    assert noise.unique().numel() == noise.numel()


def test_a_model_without_a_state_reads_the_longer_history():
    x = torch.randn(5, 2, 1)
    with_state = bayesrnn.forecast(_recurrent(), x, 4, samples=3, seed=7)
    without = bayesrnn.forecast(_recurrent(Forgetful), x, 4, samples=3, seed=7)
    torch.testing.assert_close(with_state.means, without.means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(with_state.paths, without.paths, rtol=1e-4, atol=1e-5)


def test_batch_first():
    x = torch.randn(5, 2, 1)
    expected = bayesrnn.forecast(_recurrent(), x, 4, samples=3, paths_per_sample=2)
    for kind in (Recurrent, Forgetful):
        found = bayesrnn.forecast(
            _recurrent(kind, batch_first=True),
            x.transpose(0, 1),
            4,
            samples=3,
            paths_per_sample=2,
            batch_first=True,
        )
        torch.testing.assert_close(
            found.means, expected.means.transpose(1, 2), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            found.paths, expected.paths.transpose(1, 2), rtol=1e-4, atol=1e-5
        )


def test_paths_of_a_weight_sample_are_side_by_side():
    """Each path of a sample follows its own values, from one history."""
    posterior, x = _recurrent(), torch.randn(5, 2, 1)
    ahead = bayesrnn.forecast(posterior, x, 3, samples=2, paths_per_sample=4)
    assert ahead.means.shape == (8, 3, 2)
    first = ahead.means[:, 0]
    torch.testing.assert_close(first[:4], first[:1].expand(4, -1))
    assert not torch.allclose(first[4], first[0])
    assert (ahead.means[1, 1] != ahead.means[0, 1]).all()
    for s, generator in enumerate(sample_generators(2, 0, x.device)):
        with posterior.sample(generator=generator), torch.no_grad():
            _, _, state = posterior.model(x)
            for path in range(4):
                fed = ahead.paths[4 * s + path, 0][None, :, None]
                mean, _, _ = posterior.model(fed, state)
                torch.testing.assert_close(ahead.means[4 * s + path, 1], mean[-1])


def test_without_noise_the_mean_is_fed_back():
    x = torch.zeros(3, 2, 1)
    ahead = bayesrnn.forecast(_walk(), x, 5, samples=4, noise=False)
    assert torch.equal(ahead.paths, ahead.means)
    torch.testing.assert_close(ahead.variance, torch.full((5, 2, 1), SD**2))
    torch.testing.assert_close(ahead.aleatoric + ahead.epistemic, ahead.variance)


def test_at_the_mean_weights_there_is_only_noise():
    ahead = bayesrnn.forecast(_walk(0.5), torch.ones(3, 2, 1), 5, samples=0, paths_per_sample=500)
    assert ahead.epistemic.max() == 0
    right = SD**2 * torch.arange(1, 6)[:, None, None]
    assert (ahead.variance / right - 1).abs().max() < 5 * math.sqrt(2 / 500)


def test_a_forecast_is_a_mixture_over_paths():
    x, y = torch.randn(5, 2, 1), torch.randn(4, 2)
    ahead = bayesrnn.forecast(_recurrent(), x, 4, samples=6)
    as_values = bayesrnn.Values(ahead.means, ahead.variances)
    assert isinstance(ahead, bayesrnn.Values)
    torch.testing.assert_close(ahead.crps(y), as_values.crps(y))
    torch.testing.assert_close(ahead.variance, as_values.variance)
    torch.testing.assert_close(ahead.quantile(0.1), as_values.quantile(0.1))


def test_the_next_input_may_have_other_features():
    """Input (value, calendar): the model adds the calendar to the value."""

    class Seasonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x, state=None):
            mean = self.weight * x.sum(-1)
            return mean, torch.full_like(mean, 1e-12), ()

    posterior = bayesrnn.Posterior(Seasonal(), PRIOR, sigma_init=1e-6)
    calendar = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])  # (steps, N)
    x = torch.zeros(4, 2, 2)
    ahead = bayesrnn.forecast(
        posterior,
        x,
        4,
        samples=2,
        paths_per_sample=3,
        next_input=lambda value, step: torch.stack([value, calendar[step]], -1),
    )
    expected = torch.cat([torch.zeros(1, 2), calendar.cumsum(0)])
    assert ahead.means.shape == (6, 4, 2)
    torch.testing.assert_close(ahead.means, expected.expand(6, 4, 2), rtol=1e-4, atol=1e-4)


def test_a_model_of_windows_that_predicts_the_last_step():
    class Window(nn.Module):
        """(N, 3, 1) -> (N, 1): the sum."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1, bias=False)
            nn.init.ones_(self.linear.weight)

        def forward(self, x):
            return self.linear(x.flatten(1))

    posterior = bayesrnn.Posterior(Window(), PRIOR, sigma_init=1e-6)
    x = torch.tensor([9.0, 1.0, 1.0, 1.0]).view(1, 4, 1).expand(2, 4, 1)
    window = {"batch_first": True, "window": 3, "noise": False}
    ahead = bayesrnn.forecast(posterior, x, 4, samples=2, **window)
    expected = torch.tensor([3.0, 5.0, 9.0, 17.0]).view(1, 4, 1)
    torch.testing.assert_close(ahead.mean, expected.expand(2, 4, 1), rtol=1e-3, atol=0)
    two = bayesrnn.forecast(posterior, x[:, :3], 2, samples=2, **window)
    assert two.mean[0, 0].item() == pytest.approx(11, rel=1e-3)


def test_a_forecast_repeats_by_its_seed_and_changes_nothing():
    posterior, x = _recurrent(), torch.randn(5, 2, 1)
    posterior.model.train()
    posterior.model.out.eval()
    before = torch.get_rng_state()
    one, two = (bayesrnn.forecast(posterior, x, 3, samples=4, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.paths, two.paths)
    other = bayesrnn.forecast(posterior, x, 3, samples=4, seed=6)
    assert not torch.equal(one.paths, other.paths)
    assert posterior.model.lstm.training
    assert not posterior.model.out.training
    few = bayesrnn.forecast(posterior, x, 3, samples=2, seed=5)
    assert torch.equal(few.paths, one.paths[:2])
    assert not one.paths.requires_grad
    values = bayesrnn.predict_values(posterior, x, samples=4, seed=5)  # the same weights
    torch.testing.assert_close(one.means[:, 0], values.means[:, -1])


def test_a_half_precision_model():
    posterior = bayesrnn.Posterior(Walk().bfloat16(), PRIOR, sigma_init=1e-6)
    ahead = bayesrnn.forecast(posterior, torch.zeros(2, 1, 1).bfloat16(), 3, samples=4)
    assert ahead.means.dtype == ahead.paths.dtype == torch.float32


def test_the_parts_need_several_paths_of_a_sample():
    ahead = bayesrnn.forecast(_walk(), torch.zeros(1, 1, 1), 3, samples=4)
    for part in ("aleatoric", "epistemic"):
        with pytest.raises(ValueError, match="paths_per_sample=1: noise and weights"):
            getattr(ahead, part)
    assert ahead.variance.min() > 0


def test_a_short_representation():
    means, variances = torch.zeros(4, 3, 2), torch.ones(4, 3, 2)
    variances[:, -1] = 9
    ahead = bayesrnn.Forecast(means, variances, paths=means)
    sizes = "mean sd 1 at the first step, 3 at the last)"
    assert repr(ahead) == f"Forecast((3, 2), 3 steps, paths: 4 without noise, {sizes}"
    turned = bayesrnn.Forecast(means.mT, variances.mT, paths=means.mT, batch_first=True)
    assert repr(turned) == f"Forecast((2, 3), 3 steps, paths: 4 without noise, {sizes}"
    noisy = bayesrnn.Forecast(means, variances, paths=means + 1)
    assert repr(noisy) == f"Forecast((3, 2), 3 steps, paths: 4, {sizes}"


def test_a_model_without_a_variance_is_noticed():
    posterior, x = _walk(), torch.zeros(4, 2, 1)
    with pytest.warns(UserWarning, match=r"carry no noise.*return \(mean, variance\)") as caught:
        ahead = bayesrnn.forecast(posterior, x, 3, samples=4, read=lambda output: output[0])
    assert len(caught) == 1
    assert "without noise" in repr(ahead)
    bayesrnn.forecast(posterior, x, 3, samples=4, read=lambda output: output[0], noise=False)


def test_an_error_in_next_input_says_what_it_was_given():
    posterior, x = _walk(), torch.zeros(4, 33, 1)
    with pytest.raises(ValueError, match=r"value has shape \(33, 1\) at step 0") as caught:
        bayesrnn.forecast(posterior, x, 2, next_input=lambda value, step: value @ torch.ones(3, 3))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_bad_forecasts():
    posterior, x = _walk(), torch.zeros(4, 2, 1)
    with pytest.raises(ValueError, match="steps=0"):
        bayesrnn.forecast(posterior, x, 0)
    with pytest.raises(ValueError, match="paths_per_sample=0"):
        bayesrnn.forecast(posterior, x, 1, paths_per_sample=0)
    with pytest.raises(ValueError, match="window=-1"):
        bayesrnn.forecast(posterior, x, 1, window=-1)
    with pytest.raises(ValueError, match="these paths would be equal"):
        bayesrnn.forecast(posterior, x, 1, paths_per_sample=2, noise=False)
    with pytest.raises(ValueError, match=r"x is \(4, 2\) torch.int64"):
        bayesrnn.forecast(posterior, torch.zeros(4, 2, dtype=torch.long), 1)
    with pytest.raises(ValueError, match="needs a Posterior"):
        bayesrnn.forecast(posterior.model, x, 1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"values of shape \(3,\) .* reads \(1,\); give next_input="
    ):
        bayesrnn.forecast(posterior, x, 2, read=lambda out: out[0].expand(-1, -1, 3))
    with pytest.raises(
        ValueError, match=r"inputs of shape \(5,\) for each series; the model reads \(1,\)"
    ):
        bayesrnn.forecast(posterior, x, 2, next_input=lambda value, step: value.expand(-1, 5))
    with pytest.raises(ValueError, match=r"mean of shape \(3, 7\) .* Is batch_first right"):
        bayesrnn.forecast(posterior, x, 2, read=lambda out: torch.zeros(3, 7))
