"""Pruning: the order in which weights are dropped, and a model with some of them set to zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrnn.posterior import Posterior
from bayesrnn.variational import pruning


@dataclass(frozen=True)
class DropOrder:
    """The order in which weights are dropped: for each weight, the share of weights dropped before it."""

    weights: Mapping[str, Tensor]
    """The weights of the model, by name."""
    order: dict[str, Tensor]

    def kept(self, drop: float) -> dict[str, Tensor]:
        """Masks of the weights that are kept when the share `drop` is dropped, by name."""
        if not 0 <= drop < 1:
            raise ValueError(
                f"drop = {drop} must be at least 0 and below 1: a share of the weights."
            )
        return {name: pruning.kept(order, drop) for name, order in self.order.items()}

    @contextmanager
    def dropped(self, drop: float) -> Iterator[dict[str, Tensor]]:
        """Inside the block the share `drop` of the model's weights is zero; afterwards all are restored."""
        kept = self.kept(drop)
        before = {name: self.weights[name].detach().clone() for name in kept}
        try:
            with torch.no_grad():
                for name, keep in kept.items():
                    self.weights[name].mul_(keep)
            yield kept
        finally:
            with torch.no_grad():
                for name, values in before.items():
                    self.weights[name].copy_(values)


def by_signal_to_noise(posterior: Posterior, *, per_tensor: bool = False) -> DropOrder:
    """Order by |mu| / sigma, over the whole model or within each tensor."""
    weights = posterior.weights.model_weights()
    return _drop_order(weights, posterior.named(posterior.snr()), per_tensor)


def by_magnitude(weights: Mapping[str, Tensor], *, per_tensor: bool = False) -> DropOrder:
    """Order by |w|, for models without a posterior."""
    return _drop_order(weights, {n: w.detach().abs() for n, w in weights.items()}, per_tensor)


def _drop_order(
    weights: Mapping[str, Tensor], scores: Mapping[str, Tensor], per_tensor: bool
) -> DropOrder:
    flat = [score.reshape(-1) for score in scores.values()]
    if per_tensor:
        orders = [pruning.drop_order(score) for score in flat]
    else:
        orders = pruning.drop_order(torch.cat(flat)).split([len(score) for score in flat])
    pairs = zip(scores.items(), orders, strict=True)
    return DropOrder(weights, {name: order.view(score.shape) for (name, score), order in pairs})
