"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011; for RNNs, Gan et al., 2016).

With loss = (total nats of a pass) / M, where M = N C at the scale of `Cuts`, SGD with learning rate lr on
loss - log p(theta) / M, plus noise N(0, 2 lr / M), samples from the posterior as lr goes to 0. The training
loop clips the gradient, as for every method; steps that are clipped are not exact Langevin steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn.gradients import add_grads
from bayesrnn.methods.base import Member, StepResult
from bayesrnn.methods.point_estimate import PointEstimate
from bayesrnn.storage import copy_state
from bayesrnn.weights.flat import FlatWeights
from bayesrnn.weights.select import Select

T = TypeVar("T")


def build(model: nn.Module, settings: Any, *, select: Select = None, generator: Generator) -> Sgld:
    return Sgld(model, prior_sigma=settings.sgld_prior_sigma, keep=settings.sgld_samples)


class Sgld(PointEstimate):
    """Trains the latest weights of the chain; predicts with an average over those of the last epochs."""

    def __init__(self, model: nn.Module, *, prior_sigma: float, keep: int) -> None:
        super().__init__(model)
        self.prior_sigma = prior_sigma
        self.keep = keep
        self.flat = FlatWeights(model)
        self.flat.bind(mu=nn.Parameter(self.flat.start()))
        self.samples: list[Tensor] = []

    @property
    def theta(self) -> nn.Parameter:
        """The latest weights of the chain, a flat vector."""
        return self.flat.flat["mu"]

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.theta

    def weights(self) -> dict[str, Tensor]:
        return self.flat.model_weights()

    def gradients(self) -> dict[str, Tensor]:
        return self.flat.gradients()

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None
    ) -> StepResult[T]:
        theta = self.theta.detach()
        leaves = self.flat.leaves(theta)
        with self.flat.holding(leaves):
            result = super().step(closure, kl_weight=kl_weight, generator=generator)
        g = self.flat.flatten([leaf.grad for leaf in leaves])
        assert g is not None
        add_grads({self.theta: langevin_gradient(g, theta, self.prior_sigma, kl_weight)})
        return result

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator | None) -> None:
        langevin_noise_(self.theta, lr, kl_weight, generator)

    def after_epoch(self) -> None:
        self.samples.append(self.theta.detach().clone())
        del self.samples[: -self.keep]

    def resting(self) -> list[Member]:
        return self.members(len(self.samples), 0) if self.samples else super().resting()

    def members(self, samples: int, seed: int) -> list[Member]:
        if len(self.samples) < samples:
            raise ValueError(
                f"this run kept {len(self.samples)} weight samples; ask for no more, or train with a larger "
                "--sgld-samples."
            )
        # Dynamic evaluation changes theta; the samples are shifted by the same amount.
        then = self.theta.detach().clone()
        latest_first = self.samples[
            : -samples - 1 : -1
        ]  # so that fewer samples are a prefix of more
        return [lambda s=s: self._sample(s + (self.theta.detach() - then)) for s in latest_first]

    def available(self, samples: Sequence[int]) -> list[int]:
        return sorted({count for count in samples if count <= len(self.samples)})

    def state_dict(self) -> dict[str, Tensor]:
        samples = {f"sample.{index:03d}": sample for index, sample in enumerate(self.samples)}
        return {"theta": self.theta.detach(), **samples}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        device = self.theta.device
        self.samples = [
            state[name].to(device, copy=True) for name in sorted(state) if name != "theta"
        ]
        copy_state(self.state_dict(), state)

    def _sample(self, theta: Tensor) -> AbstractContextManager[None]:
        return self.flat.holding(self.flat.leaves(theta))


def langevin_gradient(g: Tensor, theta: Tensor, prior_sigma: float, kl_weight: float) -> Tensor:
    """g + w * theta / prior_sigma^2: the loss and its share of -log N(theta | 0, prior_sigma^2)."""
    return g.add(theta, alpha=kl_weight / prior_sigma**2)


@torch.no_grad()
def langevin_noise_(
    theta: Tensor, lr: float, kl_weight: float, generator: Generator | None
) -> None:
    """Add N(0, 2 lr w) in place, after a step of lr; w = 1 / M is the posterior's temperature."""
    noise = torch.empty_like(theta).normal_(generator=generator)
    theta.add_(noise, alpha=(2 * lr * kl_weight) ** 0.5)
