"""A normal prior around given weights, for fine-tuning and for learning one task after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrnn.variational.normal import VectorNormal, check_positive

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout, Slot


@dataclass(frozen=True, eq=False, repr=False)
class Centred:
    """p(theta_j) = N(m_j, s_j^2) around given weights: those of a trained network, or an earlier posterior.

    The weights are those of a module, a state_dict or a posterior's mean, found by name, and are copied.
    `sigma` is one number or, by the same names, one for each weight.
    """

    weights: Any  # a module or a mapping; once made, a mapping of tensors
    sigma: float | Mapping[str, Tensor]

    def __post_init__(self) -> None:
        model = getattr(self.weights, "model", None)
        is_posterior = isinstance(model, nn.Module) and not isinstance(self.weights, nn.Module)
        given: Any = model if is_posterior else self.weights
        named = given.state_dict() if hasattr(given, "state_dict") else given
        if not isinstance(named, Mapping):
            raise ValueError(
                f"Centred: give a module or its state_dict(), not a {type(given).__name__}."
            )
        object.__setattr__(self, "weights", _copied(named))
        if isinstance(self.sigma, Mapping):
            object.__setattr__(self, "sigma", _copied(self.sigma))
            for name, tensor in self.sigma.items():
                if not (tensor > 0).all() or not tensor.isfinite().all():
                    raise ValueError(
                        f"Centred: sigma of {name!r} must be positive and finite throughout."
                    )
        else:
            check_positive("Centred", sigma=self.sigma)

    def bind(self, layout: Layout) -> VectorNormal:
        """As one vector; padding rows have no part in it."""
        mean = torch.cat([_of_slot("weights", self.weights, slot) for slot in layout])
        if isinstance(self.sigma, Mapping):
            stddev = torch.cat([_of_slot("sigma", self.sigma, slot) for slot in layout])
        else:
            stddev = torch.full_like(mean, self.sigma)
        return VectorNormal(stddev, mean)

    def restricted_to(self, layout: Layout) -> Centred:
        """Without the weights that this layout has not."""
        names = {slot.name for slot in layout}
        sigma = self.sigma
        if isinstance(sigma, Mapping):
            sigma = {name: tensor for name, tensor in sigma.items() if name in names}
        return Centred({n: t for n, t in self.weights.items() if n in names}, sigma)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Centred) and all(map(_equal, self._parts, other._parts))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def _parts(self) -> tuple[Any, Any]:
        return self.weights, self.sigma

    def __repr__(self) -> str:
        width = "one for each weight" if isinstance(self.sigma, Mapping) else f"{self.sigma:g}"
        return f"Centred({len(self.weights)} tensors, sigma={width})"


def _copied(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """The floating-point tensors among them, as values of their own."""
    return {
        name: tensor.detach().clone()
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    }


def _of_slot(what: str, tensors: Mapping[str, Tensor], slot: Slot) -> Tensor:
    if slot.name not in tensors:
        raise ValueError(
            f"Centred: the {what} have no {slot.name!r}, which is Bayesian; they have "
            f"{', '.join(sorted(tensors)[:4])}, ...; {_cure(slot)}"
        )
    tensor = tensors[slot.name]
    if tuple(tensor.shape) != slot.shape:
        raise ValueError(
            f"Centred: {slot.name!r} has shape {tuple(tensor.shape)} in the {what}, the model has "
            f"{slot.shape}; {_cure(slot)}"
        )
    return tensor.reshape(-1)


def _cure(slot: Slot) -> str:
    layer = slot.name.rpartition(".")[0]
    pattern = f"{layer}.*" if layer else slot.name
    return f'for a new layer use Grouped({{"{pattern}": Normal(1.0), "*": Centred(...)}}).'


def _equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return type(one) is type(other) and one == other
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
