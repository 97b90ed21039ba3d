"""What a method is: how a minibatch becomes gradients, and which weights predict.

No torch is loaded here, so that settings can be checked, and `--help` printed, without it.
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
"""Puts one member of an ensemble into the model for the length of a block; it can be used many times."""

Dropout = Literal["none", "standard", "variational"]


@dataclass(frozen=True)
class StepResult(Generic[T]):
    """What one minibatch gave."""

    value: T
    """What the closure returned."""
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """What the method reports of the minibatch, in nats, such as `kl_theta`."""


class Method(Protocol):
    """What the training loop and the evaluations need of a method."""

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
        """What the optimiser trains."""
        ...

    def rho(self) -> nn.Parameter | None:
        """The parameter that decides sigma, which has a learning rate of its own."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights that the model predicts with, by name: leaf tensors that require gradients."""
        ...

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator
    ) -> StepResult[T]:
        """Add one minibatch's gradients to `.grad`.

        The closure returns the loss, or a tuple that begins with it.
        """
        ...

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator) -> None: ...

    def after_epoch(self) -> None: ...

    def kl(self) -> float | None:
        """KL of the posterior to its prior in nats, if the method has one."""
        ...

    def resting(self) -> list[Member]:
        """What predicts when nothing is sampled.

        `[nullcontext]` stands for the weights that the model holds, such as the posterior's mean; SGLD has
        the samples that it kept.
        """
        ...

    def members(self, samples: int, seed: int) -> list[Member]:
        """A Monte Carlo ensemble; ValueError if there are not so many samples."""
        ...

    def available(self, samples: Sequence[int]) -> list[int]:
        """Which of these numbers of samples `members` can give, in order."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def header(self) -> dict[str, Any]:
        """What the file of the weights says about them."""
        ...


@dataclass(frozen=True)
class MethodSpec:
    """A method as the registry knows it."""

    name: str
    module: str
    """Where `build(model, settings, *, select, generator) -> Method` is; imported when it is needed."""
    dropout: Dropout = "none"
    """The kind of dropout that the model shall have."""
    tasks: tuple[str, ...] | None = None
    """The experiments that offer it; None for all."""
    averages_weights: bool = True
    """Whether an average of its weights over the steps can predict (`--average`)."""

    def build(
        self, model: nn.Module, settings: Any, *, select: Select = None, generator: Generator
    ) -> Method:
        """The method around a freshly initialised model; losses are averaged over the minibatch.

        `select` says by name which weights are Bayesian, where the method has a posterior.
        """
        build = import_module(self.module).build
        return build(model, settings, select=select, generator=generator)
