"""Values as a mixture of normals, and classes: against slow, obvious computations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

import bayesrnn
from bayesrnn.ensemble import Moments, sample_generators
from bayesrnn.prediction import mixture

PRIOR = bayesrnn.Normal(1.0)


def _values(samples: int = 5, shape: tuple[int, ...] = (3, 2)) -> bayesrnn.Values:
    generator = torch.Generator().manual_seed(1)
    means = 2 * torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    variances = torch.rand(samples, *shape, generator=generator, dtype=torch.float64) + 0.05
    return bayesrnn.Values(means, variances)


def _torch_mixture(values: bayesrnn.Values) -> MixtureSameFamily:
    means, sd = values.means.movedim(0, -1), values.variances.sqrt().movedim(0, -1)
    return MixtureSameFamily(Categorical(torch.ones_like(means)), Normal(means, sd))


Y = torch.tensor([[0.3, -5.0], [1.0, 0.0], [9.0, -0.7]], dtype=torch.float64)


def test_density_and_distribution_function_are_those_of_torch():
    values = _values()
    expected = _torch_mixture(values)
    torch.testing.assert_close(values.log_prob(Y), expected.log_prob(Y))
    torch.testing.assert_close(values.cdf(Y), expected.cdf(Y))
    torch.testing.assert_close(values.cdf(0.5), expected.cdf(torch.full_like(Y, 0.5)))


def test_quantiles_invert_the_distribution_function():
    values, p = _values(), torch.tensor([[0.001, 0.05], [0.5, 0.99]], dtype=torch.float64)
    found = values.quantile(p)
    assert found.shape == (2, 2, 3, 2)
    back = _torch_mixture(values).cdf(found)
    torch.testing.assert_close(back, p[..., None, None].expand_as(back), rtol=1e-12, atol=1e-13)
    assert torch.equal(values.quantile(0.05), found[0, 1])


def test_quantiles_beside_a_component_far_away():
    """One weight sample that has diverged leaves the precision of the others."""
    means, variances = torch.zeros(3, 1), torch.ones(3, 1)
    means[2] = 1e7
    found = bayesrnn.Values(means, variances).quantile(1 / 3)
    assert found.item() == pytest.approx(Normal(0.0, 1.0).icdf(torch.tensor(0.5)).item(), abs=1e-6)


def test_an_interval_has_its_share_of_draws():
    values = _values()
    low, high = values.interval(0.8)
    draws = _torch_mixture(values).sample((20_000,))
    error = 4 * math.sqrt(0.1 * 0.9 / 20_000)
    assert ((draws < low).double().mean(0) - 0.1).abs().max() < error
    assert ((draws > high).double().mean(0) - 0.1).abs().max() < error


def test_one_normal():
    values = bayesrnn.Values(torch.tensor([[1.0]]), torch.tensor([[4.0]]))
    normal = Normal(1.0, 2.0)
    assert values.quantile(0.975).item() == pytest.approx(normal.icdf(torch.tensor(0.975)).item())
    assert values.log_prob(0.0).item() == pytest.approx(normal.log_prob(torch.tensor(0.0)).item())
    # Gneiting and Raftery (2007), equation 21.
    z = torch.tensor(1.5)
    unit = Normal(0.0, 1.0)
    expected = 2 * (z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi))
    assert values.crps(4.0).item() == pytest.approx(expected.item(), rel=1e-6)


def test_crps_is_the_integral_of_the_squared_difference():
    values = _values(samples=4)
    grid = torch.linspace(-25, 25, 200_001, dtype=torch.float64)[:, None, None]
    step = (_torch_mixture(values).cdf(grid.expand(-1, 3, 2)) - (grid >= Y).double()).square()
    torch.testing.assert_close(
        values.crps(Y), torch.trapezoid(step, dx=50 / 200_000, dim=0), rtol=1e-4, atol=2e-4
    )


def test_crps_is_that_of_many_draws():
    from torchmetrics.regression import ContinuousRankedProbabilityScore

    values = _values(samples=3)
    draws = _torch_mixture(values).sample((900,)).flatten(1).T
    expected = ContinuousRankedProbabilityScore()(draws, Y.flatten())
    assert values.crps(Y).mean().item() == pytest.approx(expected.item(), rel=0.03)


def test_crps_of_points_is_that_of_an_ensemble():
    from torchmetrics.functional.regression import continuous_ranked_probability_score as crps

    means = _values(samples=7).means
    found = bayesrnn.Values(means, torch.zeros_like(means)).crps(Y)
    expected = crps(means.flatten(1).T, Y.flatten())
    torch.testing.assert_close(found.mean(), expected)
    one = bayesrnn.Values(means[:1], torch.zeros_like(means[:1]))
    torch.testing.assert_close(one.crps(Y), (means[0] - Y).abs())


def test_points_have_empirical_quantiles_and_a_step():
    means = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 1.0]])
    variances = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    values = bayesrnn.Values(means, variances)
    assert values.quantile(0.25)[0].item() == pytest.approx(1.5)
    assert values.quantile(0.5)[0].item() == pytest.approx(2.0)
    low, high = values.interval(0.5)
    assert (low[0].item(), high[0].item()) == pytest.approx((1.5, 3.0))
    back = values.cdf(torch.tensor([2.0, values.quantile(0.3)[1].item()]))
    assert back.tolist() == pytest.approx([2 / 3, 0.3])
    with pytest.raises(ValueError, match="no density"):
        values.log_prob(torch.zeros(2))


def test_pieces_make_the_whole(monkeypatch):
    values = _values(samples=5, shape=(7, 3))
    y = torch.randn(7, 3, dtype=torch.float64)
    whole = [values.cdf(y), values.log_prob(y), values.crps(y), values.quantile(0.2)]
    monkeypatch.setattr(mixture, "AT_ONCE", 22)  # four values at a time
    parts = [values.cdf(y), values.log_prob(y), values.crps(y), values.quantile(0.2)]
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


def test_values_of_any_shape():
    for shape in ((), (0, 2), (4,)):
        values = _values(shape=shape)
        assert values.quantile(0.3).shape == values.crps(torch.zeros(shape)).shape == shape
        assert values.quantile(torch.tensor([0.1, 0.2])).shape == (2, *shape)


def test_wrong_shapes_and_probabilities_of_values():
    values = _values()
    for function in (values.cdf, values.log_prob, values.crps):
        with pytest.raises(ValueError, match=r"y has shape \(3, 1\), and the values \(3, 2\)"):
            function(torch.zeros(3, 1))
    for p in (0.0, 1.0, 5, torch.tensor([0.5, 95.0])):
        with pytest.raises(ValueError, match="between 0 and 1"):
            values.quantile(p)
    with pytest.raises(ValueError, match="coverage=90"):
        values.interval(90)


class Heteroscedastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        mean, log_variance = self.out(x).unbind(-1)
        return mean, log_variance.exp()


def test_values_keep_every_sample():
    posterior, x = bayesrnn.Posterior(Heteroscedastic(), PRIOR, sigma_init=0.5), torch.randn(6, 3)
    values = bayesrnn.predict_values(posterior, x, samples=4, seed=3)
    means, variances = Moments(), Moments()
    for s, generator in enumerate(sample_generators(4, 3, x.device)):
        with posterior.sample(generator=generator), torch.no_grad():
            mean, variance = posterior.model(x)
        torch.testing.assert_close(values.means[s], mean)
        torch.testing.assert_close(values.variances[s], variance)
        means.add(mean)
        variances.add(variance)
    torch.testing.assert_close(values.mean, means.mean)
    torch.testing.assert_close(values.epistemic, means.variance)
    torch.testing.assert_close(values.aleatoric, variances.mean)
    torch.testing.assert_close(values.variance, variances.mean + means.variance)


def test_values_of_a_half_precision_model_are_summed_in_float32():
    """Means of 1 and 1 + 2^-7, the next bfloat16, average to what bfloat16 cannot hold."""
    posterior = bayesrnn.Posterior(nn.Linear(3, 1).bfloat16(), PRIOR)
    outputs = iter([torch.ones(2).bfloat16(), torch.full((2,), 1 + 2**-7).bfloat16()])
    values = bayesrnn.predict_values(
        posterior, torch.ones(2, 3).bfloat16(), samples=2, read=lambda out: next(outputs)
    )
    assert values.mean.dtype == torch.float32
    assert values.mean[0].item() == 1 + 2**-8


def test_samples_of_classes_are_kept_on_request():
    posterior, x = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR, sigma_init=0.5), torch.randn(6, 3)
    assert bayesrnn.predict(posterior, x, samples=3).sample_log_probs is None
    kept = bayesrnn.predict(posterior, x, samples=3, keep_samples=True)
    assert kept.sample_log_probs is not None
    assert kept.sample_log_probs.shape == (3, 6, 4)
    torch.testing.assert_close(kept.sample_log_probs.exp().mean(0), kept.probs)
    own = Categorical(logits=kept.sample_log_probs).entropy().mean(0)
    torch.testing.assert_close(own, kept.expected_entropy)


def test_classes_without_kept_samples_hold_as_much_for_many_as_for_one(monkeypatch):
    """The log probabilities that are alive at once: the sum, and that of the sample at hand."""
    import weakref

    from bayesrnn.prediction import classes

    made: list[weakref.ref] = []
    alive = []
    original = classes.log_softmax

    def counted(logits):
        alive.append(sum(ref() is not None for ref in made))
        log_probs = original(logits)
        made.append(weakref.ref(log_probs))
        return log_probs

    monkeypatch.setattr(classes, "log_softmax", counted)
    posterior = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR, sigma_init=0.5)
    bayesrnn.predict(posterior, torch.randn(6, 3), samples=8)
    assert len(alive) == 8
    assert max(alive) <= 2


def test_log_prob_and_top_of_classes():
    posterior, x = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR, sigma_init=0.5), torch.randn(2, 5, 3)
    prediction = bayesrnn.predict(posterior, x, samples=3)
    y = torch.randint(4, (2, 5))
    expected = Categorical(probs=prediction.probs).log_prob(y)
    torch.testing.assert_close(prediction.log_prob(y), expected)
    probs, classes = prediction.top(2)
    ordered = prediction.probs.sort(descending=True)
    assert torch.equal(probs, ordered.values[..., :2])
    assert torch.equal(classes, ordered.indices[..., :2])
    for k in (10, 0):
        with pytest.raises(ValueError, match=rf"top\({k}\) of 4 classes; use 1 to 4"):
            prediction.top(k)


def test_bad_classes():
    posterior = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR)
    prediction = bayesrnn.predict(posterior, torch.randn(5, 3), samples=1)
    with pytest.raises(ValueError, match=r"y is \(5, 1\) torch.int64; .* shape \(5,\)"):
        prediction.log_prob(torch.zeros(5, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="torch.float32"):
        prediction.log_prob(torch.zeros(5))
    with pytest.raises(ValueError, match="from -100 to 2, of 0 to 3"):
        prediction.log_prob(torch.tensor([0, 1, 2, -100, 1]))


def test_short_representations():
    log_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    entropy = Categorical(log_probs.exp()).entropy()
    prediction = bayesrnn.Categorical(log_probs, entropy, entropy - 0.25, 10)
    assert repr(prediction) == (
        "Categorical((2,) over 2 classes, weight samples: 10, mean entropy 0.628 nats, "
        "mutual information 0.25)"
    )
    at_mean = bayesrnn.Categorical(log_probs, entropy, entropy, 0)
    assert "at the mean weights" in repr(at_mean)
    values = bayesrnn.Values(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]]))
    assert repr(values) == (
        "Values((1,), weight samples: 2, mean sd 2: 1.41 of the data, 1.41 of the weights)"
    )
