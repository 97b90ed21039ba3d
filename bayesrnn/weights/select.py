"""Which parameters of a module are Bayesian, and whether they can be."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn

from bayesrnn.weights.layout import Kind, Layout, Slot

Select = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Which parameters: a name pattern such as "lstm.*", several of them, a predicate, or None for all."""


@dataclass(frozen=True)
class Place:
    """An attribute of a module that holds a weight."""

    name: str
    module: nn.Module
    attribute: str


@dataclass(frozen=True)
class SharedTensor:
    """A weight and every place where it stands."""

    parameter: Tensor
    places: list[Place]

    @property
    def name(self) -> str:
        return self.places[0].name


def choose(model: nn.Module, candidates: list[SharedTensor], select: Select) -> list[SharedTensor]:
    """The candidates that `select` names, checked: one dtype, one device, nothing that cannot be sampled."""
    chosen = _choose(candidates, select)
    _check_same_kind(chosen)
    _check_references(model, chosen)
    return chosen


def candidates_of(model: nn.Module, leave_out: Container[int]) -> list[SharedTensor]:
    """Every parameter of the model with all its places, but for those whose id is in `leave_out`."""
    found: dict[int, SharedTensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=True):
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in leave_out:
                name = f"{prefix}.{attribute}" if prefix else attribute
                shared = found.setdefault(id(parameter), SharedTensor(parameter, []))
                shared.places.append(Place(name, module, attribute))
    return list(found.values())


def lay_out(chosen: list[SharedTensor]) -> Layout:
    """Consecutive stretches of one vector, in the order of the model."""
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


def _choose(tensors: list[SharedTensor], select: Select) -> list[SharedTensor]:
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


def _is_empty(parameter: Tensor) -> bool:
    return not nn.parameter.is_lazy(parameter) and parameter.numel() == 0


def _matches(tensor: SharedTensor, pattern: str) -> bool:
    return any(fnmatchcase(place.name, pattern) for place in tensor.places)


def _check_pattern(pattern: str, tensors: list[SharedTensor]) -> None:
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


def _listing(tensors: list[SharedTensor], most: int = 6) -> str:
    names = [tensor.name for tensor in tensors]
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_same_kind(chosen: list[SharedTensor]) -> None:
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


def _kind(tensor: SharedTensor) -> Kind:
    owners = [place.module for place in tensor.places]
    if any(isinstance(owner, nn.Embedding | nn.EmbeddingBag) for owner in owners):
        return "embedding"
    if any(isinstance(owner, nn.RNNBase | nn.RNNCellBase) for owner in owners):
        return "recurrent"
    return "other"


def _padding_row(tensor: SharedTensor) -> int | None:
    """The row that stays fixed; none if the weight also serves where that row is trained."""
    rows = {
        place.module.padding_idx
        if isinstance(place.module, nn.Embedding | nn.EmbeddingBag)
        else None
        for place in tensor.places
    }
    return rows.pop() if len(rows) == 1 else None


def check_model(model: nn.Module) -> None:
    """Raise if this is no module that can be made Bayesian."""
    if not isinstance(model, nn.Module):
        got = (
            f"the class {model.__name__}; call it"
            if isinstance(model, type)
            else type(model).__name__
        )
        raise ValueError(f"model must be an nn.Module; got {got}.")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "model is a DistributedDataParallel, which would average gradients before they meet their "
            "noise. Wrap the module inside, and average posterior.mu.grad and posterior.rho.grad."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ValueError(
                f"the embedding {name!r} has max_norm, which changes its weights in the forward pass; "
                "build it without."
            )


def _check_references(model: nn.Module, chosen: list[SharedTensor]) -> None:
    """Raise if a module keeps a chosen parameter in a plain list or dict, where it cannot be replaced."""
    wanted = {id(tensor.parameter): tensor.name for tensor in chosen}
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            if not isinstance(value, dict | list | tuple):
                continue
            for item in value.values() if isinstance(value, dict) else value:
                if id(item) in wanted:
                    raise ValueError(
                        f"{prefix or 'the model'} keeps the weight {wanted[id(item)]!r} in the plain "
                        f"{type(value).__name__} {attribute!r} too, where it cannot be sampled; look it up "
                        "by attribute instead, or use nn.ParameterList."
                    )
