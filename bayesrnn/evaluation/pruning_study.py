"""A pruning study: a model's loss by the share of weights dropped, for each order of dropping them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesrnn.evaluation.pruning import DROPS, Measure, curve, largest_drop
from bayesrnn.methods import Method
from bayesrnn.posterior import Posterior
from bayesrnn.pruning import DropOrder, by_magnitude, by_signal_to_noise

SIGNAL_TO_NOISE, MAGNITUDE = "signal to noise", "magnitude"


@dataclass(frozen=True)
class Prunable:
    """A trained model that weights can be dropped from, and the measure of its loss."""

    name: str
    path: Path
    method_name: str
    method: Method
    weights: Mapping[str, Tensor]
    """The weights that may be dropped, by name."""
    measure: Measure

    @property
    def posterior(self) -> Posterior:
        return posterior_of(self.method, self.method_name, self.path)

    def order_by_magnitude(self, per_tensor: bool) -> DropOrder:
        if self.method.resting() != [nullcontext]:
            raise ValueError(
                f"{self.path} predicts with samples of its weights, which cannot be pruned as one; "
                "use a baseline of another method."
            )
        return by_magnitude(self.weights, per_tensor=per_tensor)


def posterior_of(method: Method, name: str, path: Path) -> Posterior:
    """The posterior of a method that has one."""
    if method.posterior is None:
        raise ValueError(
            f"{path} is a run of method {name}, which has no posterior to prune by; "
            "use one of method bbb or sharpened."
        )
    return method.posterior


@dataclass(frozen=True)
class PruningStudy:
    """The loss by share of weights dropped, for each order of dropping, and at the chosen share."""

    run: str
    split: str
    measured: str
    """What the loss is: perplexity or error."""
    curves: dict[str, dict[float, float]]
    drop: float
    at_drop: float
    """The loss with that share dropped by signal to noise."""
    order: DropOrder

    @property
    def whole(self) -> float:
        """The loss with nothing dropped."""
        return self.curves[SIGNAL_TO_NOISE][0.0]

    def as_json(self) -> dict[str, Any]:
        curves = {
            name: [{"drop": drop, self.measured: loss} for drop, loss in points.items()]
            for name, points in self.curves.items()
        }
        return {
            "run": self.run,
            "split": self.split,
            "drop": self.drop,
            self.measured: self.at_drop,
            "curves": curves,
        }


def study_pruning(
    model: Prunable,
    *,
    split: str,
    measured: str,
    drop: float = 0.8,
    max_loss: float | None = None,
    per_tensor: bool = False,
    baseline: Prunable | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> PruningStudy:
    """Prune by signal to noise, and for comparison the same model and a baseline by magnitude.

    `max_loss` is the largest allowed relative rise in the loss, from which the share is found.
    """
    order = by_signal_to_noise(model.posterior, per_tensor=per_tensor)
    order.kept(drop)  # reject an invalid share before any work
    pruned = {
        SIGNAL_TO_NOISE: (order, model),
        MAGNITUDE: (by_magnitude(model.weights, per_tensor=per_tensor), model),
    }
    if baseline is not None:
        by_name = f"{MAGNITUDE}, {baseline.name}"
        pruned[by_name] = (baseline.order_by_magnitude(per_tensor), baseline)
    curves = {
        name: curve(
            its_order,
            its_model.measure,
            DROPS,
            lambda share, name=name: progress(f"{name}, {share:.1%} dropped"),
        )
        for name, (its_order, its_model) in pruned.items()
    }
    points = curves[SIGNAL_TO_NOISE]
    if max_loss is not None:
        progress("the largest share within the limit")
        drop = largest_drop(order, model.measure, points, points[0.0] * (1 + max_loss))
    with order.dropped(drop):
        at_drop = model.measure()
    return PruningStudy(model.name, split, measured, curves, drop, at_drop, order)
