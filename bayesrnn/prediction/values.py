"""Predictive distributions over real values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesrnn.posterior import Posterior
from bayesrnn.prediction import mixture
from bayesrnn.prediction.inputs import Call, Inputs, direct_call, joined, loader_of, over_batches
from bayesrnn.prediction.outputs import Read, check, outputs, read_values


@dataclass(frozen=True, repr=False, eq=False)
class Values:
    """A predictive distribution over real values: a mixture of N(mean, variance) over the weight samples.

    `aleatoric` is the noise in the data as the model estimates it, `epistemic` the variance over weights.
    """

    means: Tensor  # (samples, ...)
    variances: Tensor  # (samples, ...)
    states: tuple[Any, ...] = ()
    """The recurrent state of each sample, for the next part of the same sequence."""

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        return self.variances.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Unbiased; 0 for one sample."""
        return variance_over(self.means)

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    def quantile(self, p: float | Tensor) -> Tensor:
        """The value that is exceeded with probability 1 - p; a tensor of p's adds its axes in front.

        Of the mixture, exactly. Without a noise model, where all variances are 0, of the samples' means.
        """
        levels = torch.as_tensor(p, dtype=torch.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"p={p}; quantiles are at probabilities between 0 and 1.")
        found = [mixture.quantile(self.means, self.variances, q) for q in levels.flatten().tolist()]
        return torch.stack(found).view(levels.shape + self.means.shape[1:])

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval (low, high) that has the value with probability `coverage`."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage={coverage}; use a probability such as 0.9.")
        return self.quantile((1 - coverage) / 2), self.quantile((1 + coverage) / 2)

    def cdf(self, y: float | Tensor) -> Tensor:
        """P(value <= y)."""
        return mixture.cdf(self.means, self.variances, self._target(y))

    def log_prob(self, y: float | Tensor) -> Tensor:
        """The log density at y, in nats."""
        if (self.variances == 0).any():
            raise ValueError(
                "a variance is 0, which has no density; let the model return (mean, variance), with a "
                "variance above 0."
            )
        return mixture.log_prob(self.means, self.variances, self._target(y))

    def crps(self, y: float | Tensor) -> Tensor:
        """Continuous ranked probability score, in the unit of y: 0 is best, |mean - y| for a point."""
        return mixture.crps(self.means, self.variances, self._target(y))

    def _target(self, y: float | Tensor) -> Tensor:
        target, shape = torch.as_tensor(y, device=self.means.device), self.means.shape[1:]
        if target.dim() and target.shape != shape:
            raise ValueError(
                f"y has shape {tuple(target.shape)}, and the values {tuple(shape)}; they must be the same."
            )
        return target

    def __repr__(self) -> str:
        parts = {"all": self.variance, "data": self.aleatoric, "weights": self.epistemic}
        sd = {name: f"{_mean_sd(variance):.3g}" for name, variance in parts.items()}
        return (
            f"Values({tuple(self.means.shape[1:])}, weight samples: {len(self.means)}, "
            f"mean sd {sd['all']}: {sd['data']} of the data, {sd['weights']} of the weights)"
        )


def predict_values(
    posterior: Posterior,
    *data: Any,
    samples: int = 10,
    seed: int = 0,
    states: Sequence[Any] | None = None,
    read: Read | None = None,
    inputs: Inputs | None = None,
    batch_axis: int = 0,
    progress: bool | None = None,
    **keywords: Any,
) -> Values:
    """The predictive distribution of real values, with aleatoric and epistemic variance.

    Like `predict`, but the model (or `read`) returns a mean, a pair (mean, variance) or a triple
    (mean, variance, state). Without a variance the aleatoric part is 0.
    """
    check(posterior, samples, states)
    loader = loader_of(data, states)
    if loader is None:
        call = direct_call(data, keywords, inputs, states)
        return _mixture(posterior, call, samples, seed, states, read, progress)

    def of_batch(call: Call) -> Values:
        return replace(_mixture(posterior, call, samples, seed, None, read), states=())

    device = posterior.rho.device
    return _joined(over_batches(loader, of_batch, keywords, inputs, device, progress), batch_axis)


def variance_over(samples: Tensor) -> Tensor:
    """The variance over the first axis: unbiased; 0 for one sample."""
    return samples.var(0) if len(samples) > 1 else torch.zeros_like(samples[0])


def _mixture(
    posterior: Posterior,
    call: Call,
    samples: int,
    seed: int,
    states: Sequence[Any] | None,
    read: Read | None,
    progress: bool | None = None,
) -> Values:
    means, variances, last_states = [], [], []
    for output in outputs(posterior, call, samples, seed, states, progress):
        mean, variance, state = read_values(output, read)
        means.append(mean)
        variances.append(variance)
        last_states.append(state)
    return Values(torch.stack(means), torch.stack(variances), tuple(last_states))


def _joined(parts: Sequence[Values], batch_axis: int) -> Values:
    dims = parts[0].means.dim() - 1
    if not -dims <= batch_axis < dims:
        raise ValueError(f"batch_axis={batch_axis} is no axis of values with {dims} axes.")
    axis = batch_axis % dims + 1
    means, variances = [part.means for part in parts], [part.variances for part in parts]
    return Values(joined(means, axis), joined(variances, axis))


def _mean_sd(variance: Tensor) -> float:
    return variance.sqrt().mean().item()
