"""Predictive distributions and their uncertainty, at the mean weights or averaged over weight samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrnn.ensemble import (
    Moments,
    PredictiveAverage,
    evaluating,
    log_softmax,
    sample_generators,
)
from bayesrnn.posterior import Posterior


@dataclass(frozen=True)
class Categorical:
    """A distribution over classes (the last axis of `log_probs`); entropies in nats.

    mutual_information = entropy - expected_entropy measures how much the weight samples disagree: the
    part of the uncertainty that more data would remove. It is 0 at the mean weights.
    """

    log_probs: Tensor  # (..., classes)
    entropy: Tensor  # (...)
    expected_entropy: Tensor  # (...)
    states: tuple[Any, ...]
    """The recurrent state of each sample, for the next part of the same sequence."""

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0)


@dataclass(frozen=True)
class Values:
    """A predictive distribution over real values: its mean, and its variance in two parts.

    `aleatoric` is the noise in the data as the model estimates it, `epistemic` the variance over weights.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    states: tuple[Any, ...]

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic


def predict(
    posterior: Posterior,
    *inputs: Any,
    samples: int = 10,
    seed: int = 0,
    states: Sequence[Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Categorical:
    """Class probabilities averaged over `samples` draws of the weights; `samples=0` for the mean.

    The model is called as `model(*inputs)`, or `model(*inputs, state)` with `states` from an earlier
    call, and must return logits (..., classes) or a pair (logits, state); `read` converts any other
    return value to one of these. The same `seed` gives the same weight samples in every call, so a long
    sequence can be predicted in parts. The model and the posterior are not changed.
    """
    average, last_states = PredictiveAverage(), []
    for logits, state in _outputs(posterior, inputs, samples, seed, states, read):
        if logits.dim() < 2 or logits.shape[-1] < 2:
            raise ValueError(
                f"the model returned logits of shape {tuple(logits.shape)}; they must be (..., classes) "
                "with two classes or more. For one logit z use read=lambda z: torch.stack([0 * z, z], -1); "
                "for real values predict_values."
            )
        average.add(log_softmax(logits))
        last_states.append(state)
    return Categorical(
        average.log_probs, average.entropy, average.expected_entropy, tuple(last_states)
    )


def predict_values(
    posterior: Posterior,
    *inputs: Any,
    samples: int = 10,
    seed: int = 0,
    states: Sequence[Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Values:
    """The predictive mean of real values, with aleatoric and epistemic variance.

    Like `predict`, but the model (or `read`) returns a mean, a pair (mean, variance) or a triple
    (mean, variance, state). Without a variance the aleatoric part is 0.
    """
    values, variances, last_states = Moments(), Moments(), []
    for value, variance, state in _outputs(posterior, inputs, samples, seed, states, read, parts=3):
        _check_variance(value, variance)
        values.add(value)
        variances.add(variance)
        last_states.append(state)
    return Values(values.mean, variances.mean, values.variance, tuple(last_states))


def _check_variance(mean: Tensor, variance: object) -> None:
    if not isinstance(variance, Tensor) or variance.shape != mean.shape:
        got = tuple(variance.shape) if isinstance(variance, Tensor) else type(variance).__name__
        raise ValueError(
            f"the mean has shape {tuple(mean.shape)}, but the variance is {got}. Return (mean, variance) "
            "or (mean, variance, state), or use read= to make one of these."
        )
    if (variance < 0).any():
        raise ValueError(
            f"a variance is {variance.min().item():g}; return the variance, not its logarithm or a state."
        )


def _outputs(
    posterior: Posterior,
    inputs: Sequence[Any],
    samples: int,
    seed: int,
    states: Sequence[Any] | None,
    read: Callable[[Any], Any] | None,
    parts: int = 2,
) -> Iterator[tuple[Any, ...]]:
    """The model's outputs for each weight sample, padded to `parts` entries with zeros and None."""
    if not isinstance(posterior, Posterior):
        hint = "; use its .posterior" if hasattr(posterior, "posterior") else ""
        raise ValueError(f"predict needs a Posterior; got a {type(posterior).__name__}{hint}.")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples={samples!r}; use 0 for the mean weights, or 1 and more.")
    count = max(samples, 1)
    if states is not None and len(states) != count:
        raise ValueError(f"{len(states)} states for {count} samples; pass those of the last call.")
    generators = sample_generators(samples, seed, posterior.rho.device)
    with torch.no_grad(), evaluating(posterior.model):
        for s in range(count):
            weights = posterior.sample(generator=generators[s]) if samples else posterior.mean()
            with weights:  # one weight sample for the whole sequence
                state = () if states is None else (states[s],)
                output = posterior.model(*inputs, *state)
                output = read(output) if read is not None else output
            yield _padded(output, parts)


def _padded(output: Any, parts: int) -> tuple[Any, ...]:
    got = f"a {type(output).__name__}"
    output = output if isinstance(output, tuple) else (output,)
    if not 1 <= len(output) <= parts or not isinstance(output[0], Tensor):
        shape = (
            "logits or (logits, state)"
            if parts == 2
            else "mean, (mean, variance) or (mean, variance, state)"
        )
        raise ValueError(f"the model returned {got}; use read= to turn it into {shape}.")
    defaults = (None,) if parts == 2 else (torch.zeros_like(output[0]), None)
    return (*output, *defaults[len(output) - 1 :])
