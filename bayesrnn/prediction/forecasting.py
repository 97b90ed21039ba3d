"""Forecasts of many steps: each path feeds its own sampled values back, with one weight sample throughout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrnn.posterior import Posterior
from bayesrnn.prediction.outputs import Read, check, generators_of, read_values, weight_sample
from bayesrnn.prediction.values import Values, variance_over
from bayesrnn.warn import warn

NextInput = Callable[[Tensor, int], Tensor]
"""(value, step) to the input after it: value is (N, ...), and step counts from 0 for the first forecast."""


@dataclass(frozen=True, repr=False, eq=False)
class Forecast(Values):
    """Values of the steps after a history: a mixture of normals over paths.

    `means` and `variances` are (paths, steps, N, ...), or (paths, N, steps, ...) if the history was batch
    first; the paths of one weight sample follow each other. A path's variance is that of one step: the noise
    of the steps before it has moved the path's mean.
    """

    paths: Tensor = field(kw_only=True)  # as means
    """The values that were fed back: joint samples of all steps."""
    paths_per_sample: int = field(kw_only=True, default=1)
    batch_first: bool = field(kw_only=True, default=False)

    @property
    def variance(self) -> Tensor:
        if self._can_split:
            return self.aleatoric + self.epistemic
        return self.variances.mean(0) + variance_over(self.means)

    @property
    def aleatoric(self) -> Tensor:
        """The noise in the data, that of earlier steps included; needs several paths per weight sample."""
        return self._split()[0]

    @property
    def epistemic(self) -> Tensor:
        """The variance over weights of the mean; needs several paths per weight sample."""
        return self._split()[1]

    @property
    def _can_split(self) -> bool:
        return self.paths_per_sample > 1 or self._without_noise

    @property
    def _without_noise(self) -> bool:
        return torch.equal(self.paths, self.means)

    def _split(self) -> tuple[Tensor, Tensor]:
        """The variance within weight samples, and between them (one-way analysis of variance)."""
        if not self._can_split:
            raise ValueError(
                "paths_per_sample=1: noise and weights cannot be told apart; forecast with "
                "paths_per_sample=10, or take .variance, which has both."
            )
        if self._without_noise:
            return self.variances.mean(0), variance_over(self.means)
        count = self.paths_per_sample
        by_sample = self.means.unflatten(0, (-1, count))  # (samples, paths, ...)
        within = by_sample.var(1).mean(0)
        between = variance_over(by_sample.mean(1)) - within / count
        return self.variances.mean(0) + within, between.clamp_min(0)

    def __repr__(self) -> str:
        axis = 1 if self.batch_first else 0
        sd = self.variance.sqrt()
        noise = " without noise" if self._without_noise else ""
        first, last = (sd.select(axis, step).mean().item() for step in (0, -1))
        return (
            f"Forecast({tuple(sd.shape)}, {sd.shape[axis]} steps, paths: {len(self.paths)}{noise}, "
            f"mean sd {first:.3g} at the first step, {last:.3g} at the last)"
        )


def forecast(
    posterior: Posterior,
    x: Tensor,
    steps: int,
    *,
    samples: int = 50,
    paths_per_sample: int = 1,
    seed: int = 0,
    read: Read | None = None,
    next_input: NextInput | None = None,
    batch_first: bool = False,
    noise: bool = True,
    window: int | None = None,
) -> Forecast:
    """Forecast `steps` values after the history `x` (T, N, ...).

    The model's output at a step is its prediction of the next value: mean, (mean, variance) or
    (mean, variance, state), for all steps or for the last one. Each path has one draw of the weights and
    its own recurrent state, and reads the values it has sampled. A model that returns no state is called
    again with the history and the new value.

    Args:
        posterior: what to forecast with.
        x: the history, with axes of time and batch: (T, N, F), or (N, T, F) with `batch_first`.
        steps: how many values to forecast.
        samples: how many weights to draw; 0 for the mean weights.
        paths_per_sample: paths with the same weights, side by side in the batch.
        seed: which weights and which noise.
        read: converts any other output of the model.
        next_input: the next input (N, F) from a value (N, ...) and its step, from 0; by default the value.
        batch_first: the order of the axes of `x`, of the model's output and of the forecast.
        noise: feed back a sample of N(mean, variance); otherwise the mean.
        window: how many of the last steps the model is called with, for one without a state that cannot
            read more; all by default.
    """
    check(posterior, samples)
    _check(x, steps, paths_per_sample, noise, window)
    time = 1 if batch_first else 0
    history = torch.cat([x] * paths_per_sample, dim=1 - time)
    feed = _Feed(history, time, paths_per_sample, next_input, window)
    found = []
    for generator in generators_of(posterior, samples, seed):
        with weight_sample(posterior, samples, generator):
            source = generator if noise else None
            found.append(_walk(posterior.model, feed, steps, read, source))
    means, variances, paths = (torch.cat(part) for part in zip(*found, strict=True))
    if noise and not variances.any():
        warn(
            "the model gives no variance, so the paths carry no noise and the forecast is too sure; let it "
            "return (mean, variance), or forecast with noise=False if that is meant."
        )
    return Forecast(
        means, variances, paths=paths, paths_per_sample=paths_per_sample, batch_first=batch_first
    )


@dataclass(frozen=True)
class _Feed:
    """How values become inputs; the paths of a weight sample are side by side in the batch."""

    history: Tensor
    time: int
    paths: int
    next_input: NextInput | None
    window: int | None

    def last(self, output: Tensor, given: Tensor) -> Tensor:
        """The last step (N, ...) of an output for the input `given`."""
        if output.shape[:2] == given.shape[:2]:
            return output.select(self.time, -1)
        if output.shape[:1] == given.shape[1 - self.time : 2 - self.time]:
            return output
        raise ValueError(
            f"the model returned a mean of shape {tuple(output.shape)} for an input of shape "
            f"{tuple(given.shape)}; it must have the same first two axes, or be (N, ...) for the last step. "
            "Is batch_first right?"
        )

    def input_after(self, value: Tensor, step: int) -> Tensor:
        """The next input, with an axis of time, after the values (N, ...) of all paths."""
        like = self.history.select(self.time, -1)
        if self.next_input is None:
            new = _in_shape(value, like.shape)
        else:
            new = torch.cat([self._given_input(own, step) for own in value.chunk(self.paths)])
            if new.shape != like.shape:
                raise ValueError(
                    f"next_input returned inputs of shape {tuple(new.shape[1:])} for each series; the "
                    f"model reads {tuple(like.shape[1:])}."
                )
        return new.to(like).unsqueeze(self.time)

    def _given_input(self, value: Tensor, step: int) -> Tensor:
        assert self.next_input is not None
        try:
            return self.next_input(value, step)
        except Exception as error:
            raise ValueError(
                f"next_input failed: value has shape {tuple(value.shape)} at step {step} ({error})."
            ) from error

    def recent(self, given: Tensor) -> Tensor:
        """The steps of the window."""
        length = given.shape[self.time]
        kept = length if self.window is None else min(length, self.window)
        return given.narrow(self.time, length - kept, kept)

    def by_path(self, steps: list[Tensor]) -> Tensor:
        """Values (paths * N, ...) of each step as (paths, steps, N, ...), or batch first."""
        each = [value.unflatten(0, (self.paths, -1)) for value in steps]
        return torch.stack(each, dim=1 + self.time)


def _walk(
    model: nn.Module, feed: _Feed, steps: int, read: Read | None, generator: Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and values of the paths with the weights that the model holds."""
    means, variances, values = [], [], []
    given, state = feed.recent(feed.history), None
    for step in range(steps):
        output = model(given) if state is None else model(given, state)
        mean, variance, state = _last_step(output, read, feed, given)
        value = mean if generator is None else mean + variance.sqrt() * _normal(mean, generator)
        for kept, new in ((means, mean), (variances, variance), (values, value)):
            kept.append(new)
        if step + 1 < steps:
            new = feed.input_after(value, step)
            given = new if state is not None else feed.recent(torch.cat([given, new], feed.time))
    return feed.by_path(means), feed.by_path(variances), feed.by_path(values)


def _last_step(
    output: Any, read: Read | None, feed: _Feed, given: Tensor
) -> tuple[Tensor, Tensor, Any]:
    mean, variance, state = read_values(output, read)
    return feed.last(mean, given), feed.last(variance, given), state


def _normal(like: Tensor, generator: Generator) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


def _in_shape(value: Tensor, shape: torch.Size) -> Tensor:
    """A value as an input, up to a last axis of 1."""
    if value.shape == shape:
        return value
    if (*value.shape, 1) == shape:
        return value.unsqueeze(-1)
    if value.shape == (*shape, 1):
        return value.squeeze(-1)
    raise ValueError(
        f"the model predicts values of shape {tuple(value.shape[1:])} for each series, and reads "
        f"{tuple(shape[1:])}; give next_input=, a function of (value, step) that builds the next input."
    )


def _check(x: Tensor, steps: int, paths: int, noise: bool, window: int | None) -> None:
    if not x.is_floating_point() or x.dim() < 2 or 0 in x.shape:
        raise ValueError(
            f"x is {tuple(x.shape)} {x.dtype}; it must be real values with axes of time and batch."
        )
    for name, value in (("steps", steps), ("paths_per_sample", paths), ("window", window or 1)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}; use 1 or more.")
    if paths > 1 and not noise:
        raise ValueError(
            f"paths_per_sample={paths} with noise=False: these paths would be equal; use 1."
        )
