"""The protocol of a training method: how a minibatch becomes gradients, and which weights predict.

This module does not import torch, so that settings can be checked and `--help` printed without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from bayesrnn.posterior import Posterior
    from bayesrnn.sharpened import Sharpened
    from bayesrnn.weights.select import Select

T = TypeVar("T")
Member = Callable[[], AbstractContextManager[Any]]
"""A reusable context manager: inside the block, the model has the weights of one ensemble member."""

Dropout = Literal["none", "standard", "variational"]


@dataclass(frozen=True)
class StepResult(Generic[T]):
    """The result of one minibatch."""

    value: T
    """What the closure returned."""
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Metrics of the minibatch in nats, such as `kl_theta`."""


class Method(Protocol):
    """The interface that the training loop and the evaluations use."""

    model: nn.Module

    @property
    def posterior(self) -> Posterior | None:
        """The distribution over the weights, if the method learns one."""
        ...

    @property
    def sharpened(self) -> Sharpened | None:
        """The sharpened posterior, if the method learns one."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the optimiser trains."""
        ...

    def rho(self) -> nn.Parameter | None:
        """The parameter behind sigma, which may have its own learning rate (`rho_lr`); None without one."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights the model predicts with, by name: leaf tensors that require gradients."""
        ...

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of these weights after a step, by name: what the optimiser will use, not copies."""
        ...

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None
    ) -> StepResult[T]:
        """Add one minibatch's gradients to `.grad`.

        The closure returns the loss, or a tuple that begins with it.
        """
        ...

    def share_noise(self) -> None:
        """Prepare for ranks that draw the same noise: together their minibatches count as one."""
        ...

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator | None) -> None:
        """Called after each step of the optimiser, on all ranks with the same noise."""
        ...

    def after_epoch(self) -> None: ...

    def kl(self) -> float | None:
        """KL of the posterior to its prior in nats, if the method has one."""
        ...

    def resting(self) -> list[Member]:
        """The members that predict when no samples are asked for.

        Usually `[nullcontext]`, the weights in the model, such as the posterior mean; for SGLD, the samples
        it kept.
        """
        ...

    def members(self, samples: int, seed: int) -> list[Member]:
        """A Monte Carlo ensemble of `samples` members; ValueError if the method has fewer."""
        ...

    def available(self, samples: Sequence[int]) -> list[int]:
        """The numbers of samples among these that `members` can provide, in ascending order."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def header(self) -> dict[str, Any]:
        """The header of the weights file."""
        ...


@dataclass(frozen=True)
class MethodSpec:
    """A method's entry in the registry."""

    name: str
    module: str
    """The module with `build(model, settings, *, select, generator) -> Method`; imported on first use."""
    dropout: Dropout = "none"
    """The kind of dropout in the model."""
    tasks: tuple[str, ...] | None = None
    """The experiments that offer it; None for all."""
    averages_weights: bool = True
    """Whether the average of its weights over the training steps can predict (`--average`)."""
    one_rate: bool = False
    """Whether all its weights must have the same learning rate."""

    def build(
        self, model: nn.Module, settings: Any, *, select: Select = None, generator: Generator
    ) -> Method:
        """The method for a freshly initialised model, whose losses are averages over the minibatch.

        `select` chooses the Bayesian weights by name, if the method has a posterior.
        """
        build = import_module(self.module).build
        return build(model, settings, select=select, generator=generator)
