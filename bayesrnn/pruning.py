"""Setting the weights that matter least to zero: which go first, and a model without them."""

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
    """The order in which weights of a model are dropped, by name: the share of weights that go before."""

    weights: Mapping[str, Tensor]
    """What the model predicts with."""
    order: dict[str, Tensor]

    def kept(self, drop: float) -> dict[str, Tensor]:
        """Which weights stay when the share `drop` goes, as booleans in each weight's shape."""
        if not 0 <= drop < 1:
            raise ValueError(
                f"drop = {drop} must be at least 0 and below 1: a share of the weights."
            )
        return {name: pruning.kept(order, drop) for name, order in self.order.items()}

    @contextmanager
    def dropped(self, drop: float) -> Iterator[dict[str, Tensor]]:
        """Inside the block the model's weights are its present ones, with the share `drop` of them zero."""
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
    """By |mu| / sigma over the whole model, or in each tensor by itself."""
    weights = posterior.weights.model_weights()
    return _drop_order(weights, posterior.named(posterior.snr()), per_tensor)


def by_magnitude(weights: Mapping[str, Tensor], *, per_tensor: bool = False) -> DropOrder:
    """By |w| of weights by name, as a model without a posterior is pruned."""
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
