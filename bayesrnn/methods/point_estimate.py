"""Maximum likelihood, with or without dropout: `lstm`, `sgd`, `dropout` and `variational-dropout`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn.devices import device_of, generator_on, rng_state, set_rng_state
from bayesrnn.ensemble import sample_generators
from bayesrnn.gradients import loss_of
from bayesrnn.methods import method
from bayesrnn.methods.base import Dropout, Member, StepResult
from bayesrnn.posterior import Posterior
from bayesrnn.sharpened import Sharpened
from bayesrnn.storage import copy_state
from bayesrnn.weights.select import Select

T = TypeVar("T")


def build(
    model: nn.Module, settings: Any, *, select: Select = None, generator: Generator
) -> PointEstimate:
    kind = method(settings.method).dropout
    return PointEstimate(model, kind if settings.dropout else "none")


class PointEstimate:
    """One set of weights, trained by maximum likelihood; with dropout, the ensemble is over masks."""

    posterior: Posterior | None = None
    sharpened: Sharpened | None = None

    def __init__(self, model: nn.Module, dropout: Dropout = "none") -> None:
        """`dropout` is the kind of dropout in the model."""
        self.model = model
        self.dropout: Dropout = dropout

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def rho(self) -> nn.Parameter | None:
        return None

    def weights(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def gradients(self) -> dict[str, Tensor]:
        return {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}

    def step(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None
    ) -> StepResult[T]:
        value = closure()
        loss_of(value).backward()
        return StepResult(value)

    def share_noise(self) -> None:
        pass

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator | None) -> None:
        pass

    def after_epoch(self) -> None:
        pass

    def kl(self) -> float | None:
        return None

    def resting(self) -> list[Member]:
        return [nullcontext]

    def members(self, samples: int, seed: int) -> list[Member]:
        if self.dropout == "none":
            raise ValueError(
                "this run has one set of weights and no dropout: there is nothing to sample."
            )
        generators = sample_generators(samples, seed, torch.device("cpu"))
        held = self.dropout == "variational"
        return [_mask_member(self.model, g.initial_seed(), held=held) for g in generators]

    def available(self, samples: Sequence[int]) -> list[int]:
        return [] if self.dropout == "none" else sorted(set(samples))

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        copy_state(self.state_dict(), state)

    def header(self) -> dict[str, Any]:
        return {"format": "bayesrnn-weights-1"}


def _mask_member(model: nn.Module, seed: int, *, held: bool) -> Member:
    """The model in training mode, with its own random state that continues from block to block.

    With `held`, the random state is reset on every call of the model: the masks are the same for a whole
    sequence, however it is split into chunks.
    """
    device = device_of(model)
    own = generator_on(device, seed).get_state()

    def reset() -> None:
        if held:
            set_rng_state(device, own)

    @contextmanager
    def dropping() -> Iterator[None]:
        nonlocal own
        outside, mode = rng_state(device), model.training
        set_rng_state(device, own)
        hook = model.register_forward_pre_hook(lambda *_: reset())
        model.train()
        try:
            yield
        finally:
            hook.remove()
            model.train(mode)
            own = own if held else rng_state(device)
            set_rng_state(device, outside)

    return dropping
