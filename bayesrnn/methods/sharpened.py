"""Bayes by Backprop with posterior sharpening [F17, sec. 4]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Generator, Tensor, nn

from bayesrnn import ranks
from bayesrnn.methods.base import StepResult
from bayesrnn.methods.bbb import BayesByBackprop, build_posterior
from bayesrnn.sharpened import Sharpened
from bayesrnn.weights.select import Select

T = TypeVar("T")


def build(
    model: nn.Module, settings: Any, *, select: Select = None, generator: Generator
) -> PosteriorSharpening:
    posterior = build_posterior(model, settings, select=select, generator=generator)
    sharpened = Sharpened(
        posterior,
        loss_scale=1 / settings.batch_size,
        sigma0=settings.sigma0,
        kappa_init=settings.kappa_init,
        exact=settings.exact,
    )
    return PosteriorSharpening(sharpened)


class PosteriorSharpening(BayesByBackprop):
    """Trains with the posterior sharpened on each minibatch; predicts with q(phi)."""

    def __init__(self, sharpened: Sharpened) -> None:
        super().__init__(sharpened.posterior)
        self._sharpened = sharpened

    @property
    def sharpened(self) -> Sharpened:
        return self._sharpened

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.sharpened.parameters()

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None
    ) -> StepResult[T]:
        value = self.sharpened.backward(closure, kl_weight=kl_weight, generator=generator)
        # Where the ranks sharpen on all their minibatches together, its KL is one, not one for each.
        once = 1 / ranks.world() if self.sharpened.together else 1.0
        return StepResult(value, {"kl_theta": self.sharpened.kl_theta * once})

    def share_noise(self) -> None:
        self.sharpened.together = True

    def state_dict(self) -> dict[str, Tensor]:
        return self.sharpened.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.sharpened.load_state_dict(state)

    def header(self) -> dict[str, Any]:
        return self.sharpened.header()
