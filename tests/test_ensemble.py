"""The one average over samples: against the mean of all of them at once."""

from __future__ import annotations

import torch

from bayesrnn.ensemble import LogMeanExp, Moments, PredictiveAverage, ProbabilitySum, log_softmax

SAMPLES = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_log_mean_exp_is_the_log_of_the_mean():
    average = LogMeanExp()
    for sample in SAMPLES:
        average.add(sample)
    torch.testing.assert_close(average.value, SAMPLES.exp().mean(0).log())


def test_moments_are_those_of_all_samples_at_once():
    moments = Moments()
    moments.add(SAMPLES[0])
    assert (moments.variance == 0).all()
    for sample in SAMPLES[1:]:
        moments.add(sample)
    torch.testing.assert_close(moments.mean, SAMPLES.mean(0))
    torch.testing.assert_close(moments.variance, SAMPLES.var(0))


def test_the_predictive_average_and_what_its_samples_disagree_about():
    average, log_probs = PredictiveAverage(), SAMPLES.log_softmax(-1)
    for sample in log_probs:
        average.add(sample)
    probs = log_probs.exp()
    torch.testing.assert_close(average.log_probs.exp(), probs.mean(0))
    own = -(probs * log_probs).sum(-1).mean(0)
    torch.testing.assert_close(average.expected_entropy, own)
    mean = probs.mean(0)
    torch.testing.assert_close(average.entropy, -(mean * mean.log()).sum(-1))
    assert (average.entropy > average.expected_entropy).all()


def test_half_precision_logits_give_probabilities_that_add_up_to_one():
    logits = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert (log_softmax(logits).exp().sum(-1) - 1).abs().max() < 1e-5


def test_the_sum_for_large_distributions_is_the_same_average():
    average, total, log_probs = PredictiveAverage(), ProbabilitySum(), SAMPLES.log_softmax(-1)
    for sample in log_probs:
        average.add(sample)
        total.add(sample)
        torch.testing.assert_close(total.probs / total.count, average.log_probs.exp())
        torch.testing.assert_close(total.entropy(), average.entropy)
        torch.testing.assert_close(total.expected_entropy(), average.expected_entropy)
