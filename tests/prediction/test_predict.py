from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.ensemble import sample_generators
from bayesrnn.prediction.inputs import OPTIONS

PRIOR = bayesrnn.Normal(1.0)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(9, 4), nn.LSTM(4, 5), nn.Linear(5, 9)

    def forward(self, x, state=None):
        output, state = self.lstm(self.embedding(x), state)
        return self.out(output), state


def test_probabilities_are_averaged_not_their_logs():
    posterior = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR, sigma_init=1.0)
    x = torch.randn(6, 3)
    prediction = bayesrnn.predict(posterior, x, samples=7, seed=2)
    each = []
    for generator in sample_generators(7, 2, x.device):
        with posterior.sample(generator=generator), torch.no_grad():
            each.append(posterior.model(x).softmax(-1))
    probs = torch.stack(each)
    torch.testing.assert_close(prediction.probs, probs.mean(0))
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(6))
    mean_of_entropies = torch.distributions.Categorical(probs).entropy().mean(0)
    torch.testing.assert_close(prediction.expected_entropy, mean_of_entropies)
    entropy_of_mean = torch.distributions.Categorical(probs.mean(0)).entropy()
    torch.testing.assert_close(prediction.entropy, entropy_of_mean)
    torch.testing.assert_close(
        prediction.mutual_information, (entropy_of_mean - mean_of_entropies).clamp_min(0)
    )


def test_at_the_mean_there_is_no_mutual_information():
    posterior = bayesrnn.Posterior(nn.Linear(3, 4), PRIOR, sigma_init=1.0)
    x = torch.randn(6, 3)
    prediction = bayesrnn.predict(posterior, x, samples=0)
    torch.testing.assert_close(prediction.probs, posterior.model(x).softmax(-1).detach())
    assert prediction.mutual_information.max() < 1e-6


def test_certainty_and_ignorance():
    """A uniform model has entropy log V; a certain one 0, without nan."""
    model = nn.Linear(1, 5, bias=False)
    nn.init.zeros_(model.weight)
    posterior = bayesrnn.Posterior(model, PRIOR, sigma_init=1e-6)
    uniform = bayesrnn.predict(posterior, torch.ones(1, 1), samples=2)
    assert uniform.entropy.item() == pytest.approx(math.log(5), rel=1e-5)
    with torch.no_grad():
        posterior.mu[0] = 1e4
    certain = bayesrnn.predict(posterior, torch.ones(1, 1), samples=2)
    assert certain.entropy.item() == 0


def test_a_sequence_in_stretches_is_the_sequence_at_once():
    posterior = bayesrnn.Posterior(Tagger(), PRIOR, sigma_init=0.5)
    x = torch.randint(9, (12, 2))
    whole = bayesrnn.predict(posterior, x, samples=3, seed=1)
    first = bayesrnn.predict(posterior, x[:5], samples=3, seed=1)
    second = bayesrnn.predict(posterior, x[5:], samples=3, seed=1, states=first.states)
    together = torch.cat([first.log_probs, second.log_probs])
    torch.testing.assert_close(together, whole.log_probs, rtol=1e-5, atol=1e-6)


def test_regression_splits_the_variance():
    class Heteroscedastic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_variance = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x):
            return self.mean(x), self.log_variance(x).exp()

    model = Heteroscedastic()
    posterior = bayesrnn.Posterior(model, PRIOR, select="mean.*", sigma_init=0.3)
    x = torch.tensor([[0.0], [2.0]])
    values = bayesrnn.predict_values(posterior, x, samples=4000)
    with torch.no_grad():
        mean, variance = model(x)
    # The mean's weight and bias have sigma 0.3: its variance is 0.09 (1 + x^2), exactly.
    right = 0.09 * (1 + x.square())
    standard_error = right * math.sqrt(2 / 4000)
    assert ((values.epistemic - right).abs() < 4 * standard_error).all()
    assert ((values.mean - mean).abs() < 4 * (right / 4000).sqrt()).all()
    torch.testing.assert_close(values.aleatoric, variance)
    torch.testing.assert_close(values.variance, values.aleatoric + values.epistemic)


def test_regression_without_a_noise_model_and_at_the_mean():
    posterior = bayesrnn.Posterior(nn.Linear(2, 1), PRIOR)
    x = torch.randn(4, 2)
    values = bayesrnn.predict_values(posterior, x, samples=0)
    torch.testing.assert_close(values.mean, posterior.model(x).detach())
    assert values.variance.abs().max() == 0


def test_read_reaches_into_any_output():
    posterior = bayesrnn.Posterior(Tagger(), PRIOR)
    x = torch.randint(9, (5, 2))
    logits_only = bayesrnn.predict(posterior, x, samples=2, read=lambda out: out[0])
    torch.testing.assert_close(logits_only.probs, bayesrnn.predict(posterior, x, samples=2).probs)
    assert logits_only.states == (None, None)


def test_more_samples_begin_with_the_same_ones():
    few, many = (sample_generators(n, 3, torch.device("cpu")) for n in (2, 5))
    assert [g.initial_seed() for g in few] == [g.initial_seed() for g in many[:2]]


def test_bad_calls():
    posterior = bayesrnn.Posterior(nn.Linear(2, 3), PRIOR)
    x = torch.randn(4, 2)
    with pytest.raises(ValueError, match="samples=-1"):
        bayesrnn.predict(posterior, x, samples=-1)
    with pytest.raises(ValueError, match="1 states for 3 samples"):
        bayesrnn.predict(posterior, x, samples=3, states=[None])
    with pytest.raises(ValueError, match="samples=2.5"):
        bayesrnn.predict(posterior, x, samples=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returned a dict; use read="):
        bayesrnn.predict(posterior, x, read=lambda out: {"logits": out})
    with pytest.raises(ValueError, match="use read="):
        bayesrnn.predict(posterior, x, read=lambda out: (out, 1, 2, 3))
    with pytest.raises(ValueError, match="needs a Posterior; got a Linear"):
        bayesrnn.predict(posterior.model, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got a Sharpened; use its .posterior"):
        bayesrnn.predict(bayesrnn.Sharpened(posterior, loss_scale=1.0), x)  # type: ignore[arg-type]


def test_one_logit_is_not_taken_for_a_certain_class():
    posterior = bayesrnn.Posterior(nn.Linear(2, 1), PRIOR, sigma_init=0.5)
    x = torch.randn(4, 2)
    for read in (None, lambda z: z.squeeze(-1)):
        with pytest.raises(ValueError, match="two classes or more"):
            bayesrnn.predict(posterior, x, read=read)
    binary = bayesrnn.predict(
        posterior, x, samples=0, read=lambda z: torch.stack([0 * z[:, 0], z[:, 0]], -1)
    )
    torch.testing.assert_close(binary.probs[:, 1], posterior.model(x)[:, 0].sigmoid().detach())


def test_a_state_or_a_log_variance_is_not_taken_for_a_variance():
    x = torch.randn(6, 2, 3)
    for model in (nn.GRU(3, 4), nn.LSTM(3, 4)):
        with pytest.raises(ValueError, match=r"but the variance is|a variance is"):
            bayesrnn.predict_values(bayesrnn.Posterior(model, PRIOR), x)
    posterior = bayesrnn.Posterior(nn.Linear(3, 1), PRIOR)
    with pytest.raises(ValueError, match="not its logarithm"):
        bayesrnn.predict_values(posterior, x, read=lambda mean: (mean, mean * 0 - 1))


def test_epistemic_variance_of_few_samples_is_unbiased():
    posterior = bayesrnn.Posterior(nn.Linear(2, 1), PRIOR, sigma_init=0.5)
    x = torch.randn(4, 2)
    means = []
    for generator in sample_generators(3, 0, x.device):
        with posterior.sample(generator=generator), torch.no_grad():
            means.append(posterior.model(x))
    values = bayesrnn.predict_values(posterior, x, samples=3)
    torch.testing.assert_close(values.epistemic, torch.stack(means).var(0))


def test_a_misspelt_option_is_not_left_to_the_model():
    posterior = bayesrnn.Posterior(nn.Linear(2, 3), PRIOR)
    for name, meant in {"sample": "samples", "keep_sample": "keep_samples"}.items():
        with pytest.raises(TypeError, match=rf"argument '{name}'; did you mean {meant}=\?"):
            bayesrnn.predict(posterior, torch.ones(4, 2), **{name: 10})
    with pytest.raises(TypeError, match="argument 'mask'$"):
        bayesrnn.predict(posterior, torch.ones(4, 2), mask=None)
    known = inspect.signature(bayesrnn.predict).parameters.values()
    options = {p.name for p in known if p.kind is p.KEYWORD_ONLY}
    assert options == set(OPTIONS)


def test_a_state_in_place_of_a_variance_is_refused_with_its_cure():
    posterior = bayesrnn.Posterior(nn.LSTM(2, 3), PRIOR)
    with pytest.raises(
        ValueError, match=r"a state\? read=lambda output: \(output\[0\], None, output\[1\]\)"
    ):
        bayesrnn.predict_values(posterior, torch.ones(5, 1, 2))
    x, with_state = torch.ones(5, 1, 2), lambda output: (output[0], None, output[1])
    found = bayesrnn.predict_values(posterior, x, read=with_state)
    alone = bayesrnn.predict_values(posterior, x, read=lambda output: output[0])
    assert found.mean.shape == alone.mean.shape
