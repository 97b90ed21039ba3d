"""Setting the weights that matter least to zero: which go first, and a model without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrnn.posterior import Posterior
from bayesrnn.variational import pruning


@dataclass(frozen=True)
class DropOrder:
    """The order in which weights of a model are dropped, by name: the share of weights that go before."""

    model: nn.Module
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
        parameters = {name: p for name, p in self.model.named_parameters() if name in kept}
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.mul_(kept[name])
            yield kept
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(before[name])


def by_signal_to_noise(posterior: Posterior, *, per_tensor: bool = False) -> DropOrder:
    """By |mu| / sigma over the whole model, or in each tensor by itself."""
    return _drop_order(posterior.model, posterior.named(posterior.snr()), per_tensor)


def by_magnitude(model: nn.Module, names: Iterable[str], *, per_tensor: bool = False) -> DropOrder:
    """By |w| of the named parameters, as a model without a posterior is pruned."""
    parameters = dict(model.named_parameters())
    return _drop_order(model, {n: parameters[n].detach().abs() for n in names}, per_tensor)


def _drop_order(model: nn.Module, scores: dict[str, Tensor], per_tensor: bool) -> DropOrder:
    flat = [score.reshape(-1) for score in scores.values()]
    if per_tensor:
        orders = [pruning.drop_order(score) for score in flat]
    else:
        orders = pruning.drop_order(torch.cat(flat)).split([len(score) for score in flat])
    pairs = zip(scores.items(), orders, strict=True)
    return DropOrder(model, {name: order.view(score.shape) for (name, score), order in pairs})
