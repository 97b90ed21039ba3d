"""FlatWeights: the chosen weights of a module as views of one flat vector. No mathematics here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from bayesrnn.variational.layout import Kind, Layout, Slot

Select = str | Sequence[str] | Callable[[str, nn.Parameter], bool] | None
"""Which parameters: a name pattern such as "lstm.*", several of them, a predicate, or None for all."""


class FlatWeights:
    """The selected parameters of `model` as consecutive stretches of one vector, `flat`.

    The module keeps working as it did: its parameters are still `nn.Parameter`s, with the same
    names and shapes, and hold whatever is written to `flat`. A parameter that several modules share
    is one stretch; parameters that do not require a gradient stay out.
    """

    def __init__(self, model: nn.Module, select: Select = None) -> None:
        self.model = model
        tensors = _shared_tensors(model)
        chosen = _choose(tensors, select)
        _check_same_kind(chosen)
        self.layout = _lay_out(chosen)
        self._places = [tensor.places for tensor in chosen]
        self._names = _all_names(model, chosen)

        self.flat = torch.cat([tensor.parameter.detach().reshape(-1) for tensor in chosen])
        self.parameters = [
            nn.Parameter(self.flat[slot.span].view(slot.shape)) for slot in self.layout
        ]

    def bind(self) -> None:
        """Put the views into the model. Until then the model is untouched."""
        for parameter, places in zip(self.parameters, self._places, strict=True):
            for place in places:
                # Never `p.data = view`: autograd would not notice a change of the weights between
                # forward and backward. A new Parameter shares the flat vector's version counter.
                setattr(place.module, place.attribute, parameter)

    def rest(self) -> Iterator[nn.Parameter]:
        """The model's trainable parameters that are not in the flat vector."""
        bound = {id(parameter) for parameter in self.parameters}
        for parameter in self.model.parameters():
            if parameter.requires_grad and id(parameter) not in bound:
                yield parameter

    def rest_state(self) -> dict[str, Tensor]:
        """The model's state_dict without the bound weights: buffers and ordinary parameters."""
        state = self.model.state_dict()
        return {k: v for k, v in state.items() if k not in self._names and isinstance(v, Tensor)}

    def check(self) -> None:
        """Raise if a parameter of the model is no longer the view it was bound to."""
        for slot, places, bound in zip(self.layout, self._places, self.parameters, strict=True):
            for place in places:
                current = place.module._parameters.get(place.attribute)
                if current is not bound or bound.data_ptr() != self._address(slot):
                    raise ValueError(
                        f"the weight {place.name!r} no longer belongs to this posterior: the model "
                        "was moved, converted, copied or had weights assigned after wrapping "
                        "(.to(), .double(), deepcopy, load_state_dict(assign=True)). "
                        "Do that first, then make the Posterior."
                    )

    def gather_grad(self) -> Tensor | None:
        """The gradients of all bound weights as one vector; a missing one is zeros.

        None if no weight has a gradient. The weights' own gradients are cleared.
        """
        grads = [parameter.grad for parameter in self.parameters]
        if all(grad is None for grad in grads):
            return None
        g = self.flatten(grads)
        self.clear_grad()
        return g

    def clear_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """One tensor for each slot as a vector; a missing one is zeros."""
        return torch.cat(
            [
                self.flat.new_zeros(slot.size) if tensor is None else tensor.detach().reshape(-1)
                for slot, tensor in zip(self.layout, tensors, strict=True)
            ]
        )

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by weight name, in the weight's shape."""
        return {slot.name: vector[slot.span].view(slot.shape) for slot in self.layout}

    def _address(self, slot: Slot) -> int:
        return self.flat.data_ptr() + slot.offset * self.flat.element_size()


@dataclass(frozen=True)
class _Place:
    """An attribute of a module that holds a parameter."""

    name: str
    module: nn.Module
    attribute: str


@dataclass(frozen=True)
class _SharedTensor:
    """A parameter and every place where it stands."""

    parameter: nn.Parameter
    places: list[_Place]

    @property
    def name(self) -> str:
        return self.places[0].name


def _shared_tensors(model: nn.Module) -> list[_SharedTensor]:
    found: dict[int, _SharedTensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=True):
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            place = _Place(f"{prefix}.{attribute}" if prefix else attribute, module, attribute)
            tensor = found.setdefault(id(parameter), _SharedTensor(parameter, []))
            tensor.places.append(place)
    return list(found.values())


def _all_names(model: nn.Module, tensors: list[_SharedTensor]) -> set[str]:
    """Every name under which the model's state_dict lists these tensors."""
    wanted = {id(tensor.parameter) for tensor in tensors}
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if id(parameter) in wanted}


def _choose(tensors: list[_SharedTensor], select: Select) -> list[_SharedTensor]:
    trainable = [t for t in tensors if t.parameter.requires_grad and not _is_empty(t.parameter)]
    if select is None:
        chosen = trainable
    elif callable(select):
        chosen = [t for t in trainable if select(t.name, t.parameter)]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        for pattern in patterns:
            _check_pattern(pattern, tensors)
        chosen = [t for t in trainable if any(_matches(t, pattern) for pattern in patterns)]
    if not chosen:
        why = (
            f"select={select!r} picked none of {_listing(trainable)}."
            if trainable
            else "it has no trainable parameter; call requires_grad_(True) on those to be learnt."
        )
        raise ValueError(f"no parameter of the model is Bayesian: {why}")
    return chosen


def _is_empty(parameter: nn.Parameter) -> bool:
    return not nn.parameter.is_lazy(parameter) and parameter.numel() == 0


def _matches(tensor: _SharedTensor, pattern: str) -> bool:
    return any(fnmatchcase(place.name, pattern) for place in tensor.places)


def _check_pattern(pattern: str, tensors: list[_SharedTensor]) -> None:
    matching = [tensor for tensor in tensors if _matches(tensor, pattern)]
    if not matching:
        names = [place.name for tensor in tensors for place in tensor.places]
        near = get_close_matches(pattern, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"the model has {_listing(tensors)}."
        raise ValueError(f"select: {pattern!r} matches no parameter; {hint}")
    if not any(tensor.parameter.requires_grad for tensor in matching):
        raise ValueError(
            f"select: {pattern!r} matches only frozen parameters; call requires_grad_(True) on "
            "them before wrapping, or leave them out."
        )


def _listing(tensors: list[_SharedTensor], most: int = 6) -> str:
    names = [tensor.name for tensor in tensors]
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_same_kind(chosen: list[_SharedTensor]) -> None:
    first = chosen[0]
    for tensor in chosen:
        if nn.parameter.is_lazy(tensor.parameter):
            raise ValueError(
                f"{tensor.name!r} has no shape yet; run the model once on real input, then wrap it."
            )
    if not first.parameter.is_floating_point():
        raise ValueError(
            f"{first.name!r} is {first.parameter.dtype}; only real floating-point weights can be "
            "Bayesian. Leave it out with select=."
        )
    for tensor in chosen[1:]:
        for what, cure in [("dtype", "model.float()"), ("device", "model.to(device)")]:
            here, there = getattr(tensor.parameter, what), getattr(first.parameter, what)
            if here != there:
                raise ValueError(
                    f"mixed {what}s: {first.name!r} is {there}, {tensor.name!r} is {here}. One flat "
                    f"vector needs one {what}: call {cure} before wrapping, or leave one out with "
                    "select=."
                )


def _lay_out(chosen: list[_SharedTensor]) -> Layout:
    slots, offset = [], 0
    for tensor in chosen:
        slot = Slot(
            name=tensor.name,
            shape=tuple(tensor.parameter.shape),
            offset=offset,
            kind=_kind(tensor),
            fixed_row=_padding_row(tensor),
        )
        slots.append(slot)
        offset += slot.size
    return Layout(tuple(slots))


def _kind(tensor: _SharedTensor) -> Kind:
    owners = [place.module for place in tensor.places]
    if any(isinstance(owner, nn.Embedding | nn.EmbeddingBag) for owner in owners):
        return "embedding"
    if any(isinstance(owner, nn.RNNBase | nn.RNNCellBase) for owner in owners):
        return "recurrent"
    return "other"


def _padding_row(tensor: _SharedTensor) -> int | None:
    """The row that stays fixed; none if the weight also serves elsewhere and is trained there."""
    if len(tensor.places) != 1:
        return None
    row = getattr(tensor.places[0].module, "padding_idx", None)
    return row if isinstance(row, int) and tensor.parameter.dim() == 2 else None
