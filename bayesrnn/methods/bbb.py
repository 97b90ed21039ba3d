"""Bayes by Backprop (Blundell et al., 2015; for RNNs, [F17, sec. 3])."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn import init
from bayesrnn.ensemble import sample_generators
from bayesrnn.methods.base import Member, StepResult
from bayesrnn.posterior import Posterior
from bayesrnn.sharpened import Sharpened
from bayesrnn.variational import priors
from bayesrnn.weights.select import Select

T = TypeVar("T")


def build(
    model: nn.Module, settings: Any, *, select: Select = None, generator: Generator
) -> BayesByBackprop:
    return BayesByBackprop(build_posterior(model, settings, select=select, generator=generator))


def build_posterior(
    model: nn.Module, settings: Any, *, select: Select, generator: Generator
) -> Posterior:
    """The posterior that the settings describe."""
    return Posterior(
        model,
        prior_of(settings),
        select=select,
        sigma_init=settings.sigma_init or init.from_prior(),
        kl_gradient=settings.kl_gradient,
        sigma_temperature=settings.sigma_temperature,
        generator=generator,
    )


def prior_of(settings: Any) -> Any:
    """The prior that the settings describe."""
    sigma1, sigma2 = math.exp(settings.log_sigma1), math.exp(settings.log_sigma2)
    if settings.prior == "normal":
        return priors.Normal(sigma1)
    if settings.prior == "empirical":
        return priors.EmpiricalNormal()
    mixture = priors.RowScaleMixture if settings.prior == "row-mixture" else priors.ScaleMixture
    return mixture(settings.pi, sigma1, sigma2)


class BayesByBackprop:
    """A normal posterior over the weights, trained with one sample of the weights per minibatch."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior
        self.model = posterior.model

    @property
    def sharpened(self) -> Sharpened | None:
        return None

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.posterior.parameters()

    def rho(self) -> nn.Parameter | None:
        return self.posterior.rho

    def weights(self) -> dict[str, Tensor]:
        return self.posterior.weights.model_weights()

    def gradients(self) -> dict[str, Tensor]:
        return self.posterior.weights.gradients()

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None
    ) -> StepResult[T]:
        value = self.posterior.backward(closure, kl_weight=kl_weight, generator=generator)
        return StepResult(value)

    def share_noise(self) -> None:
        pass

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator | None) -> None:
        pass

    def after_epoch(self) -> None:
        pass

    def kl(self) -> float | None:
        """An estimate from one sample with a fixed seed; the exact KL would take about a hundred passes."""
        generator = torch.Generator(self.posterior.rho.device).manual_seed(0)
        return self.posterior.kl(self.posterior.draw(generator=generator)).item()

    def resting(self) -> list[Member]:
        return [nullcontext]

    def members(self, samples: int, seed: int) -> list[Member]:
        # A member redraws its weights from a seed on each use: memory does not grow with the samples.
        seeds = [g.initial_seed() for g in sample_generators(samples, seed, torch.device("cpu"))]
        return [lambda s=s: self._sample(s) for s in seeds]

    def available(self, samples: Sequence[int]) -> list[int]:
        return sorted(set(samples))

    def state_dict(self) -> dict[str, Tensor]:
        return self.posterior.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.posterior.load_state_dict(state)

    def header(self) -> dict[str, Any]:
        return self.posterior.header()

    def _sample(self, seed: int) -> AbstractContextManager[Any]:
        generator = torch.Generator(self.posterior.rho.device).manual_seed(seed)
        return self.posterior.sample(generator=generator)
