"""Which parameters of a module are Bayesian, and whether they can be."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from types import CellType, FunctionType
from typing import Any

from torch import Tensor, nn

from bayesrnn.torch_private import has_hooks
from bayesrnn.weights.layout import Kind, Layout, Slot

Select = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Which parameters: a name pattern such as "lstm.*", several of them, a predicate, or None for all but the
gains and biases of normalisation layers."""


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
    _check_hooks(chosen)
    _check_references(model, chosen)
    return chosen


def left_out(candidates: list[SharedTensor], select: Select) -> list[str]:
    """The gains and biases of normalisation layers, which are Bayesian only if `select` names them.

    A prior around 0 would pull a gain to 0, and with it the output of the layer.
    """
    norms = [t.name for t in _trainable(candidates) if _is_of_norm(t)] if select is None else []
    return norms if len(norms) < len(_trainable(candidates)) else []


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
    trainable = _trainable(tensors)
    if select is None:
        omitted = left_out(tensors, select)
        chosen = [t for t in trainable if t.name not in omitted]
    elif callable(select) and not isinstance(select, nn.Module):
        chosen = [t for t in trainable if select(t.name, t.parameter)]
    else:
        patterns = _patterns(select)
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


def _trainable(tensors: list[SharedTensor]) -> list[SharedTensor]:
    return [t for t in tensors if t.parameter.requires_grad and not _is_empty(t.parameter)]


def _is_of_norm(tensor: SharedTensor) -> bool:
    """Whether it is a gain or bias of a normalisation layer, of torch's or of anybody's."""
    if nn.parameter.is_lazy(tensor.parameter) or tensor.parameter.dim() > 1:
        return False
    return any("norm" in type(place.module).__name__.lower() for place in tensor.places)


def _is_empty(parameter: Tensor) -> bool:
    return not nn.parameter.is_lazy(parameter) and parameter.numel() == 0


def _matches(tensor: SharedTensor, pattern: str) -> bool:
    return any(fnmatchcase(place.name, pattern) for place in tensor.places)


def _patterns(select: object) -> list[str]:
    given = [select] if isinstance(select, str) or not isinstance(select, Iterable) else [*select]
    patterns: list[Any] = given
    for pattern in patterns:
        if not isinstance(pattern, str):
            got = type(pattern).__name__
            raise ValueError(f'select takes name patterns, such as "lstm.*"; got {got}.')
    return patterns


def _check_pattern(pattern: str, tensors: list[SharedTensor]) -> None:
    matching = [tensor for tensor in tensors if _matches(tensor, pattern)]
    if not matching:
        near = _nearest(pattern, [place.name for tensor in tensors for place in tensor.places])
        hint = f"did you mean {near!r}?" if near else f"the model has {_listing(tensors)}."
        raise ValueError(f"select: {pattern!r} matches no parameter; {hint}")
    if not any(tensor.parameter.requires_grad for tensor in matching):
        raise ValueError(
            f"select: {pattern!r} matches only frozen parameters; call requires_grad_(True) on "
            "them before wrapping, or leave them out."
        )


def _nearest(pattern: str, names: list[str]) -> str | None:
    """A pattern like this one that matches: all of a layer, or a single name."""
    parts = [name.split(".") for name in names]
    layers = [".".join([*part[:i], "*"]) for part in parts for i in range(1, len(part))]
    if f"{pattern}.*" in layers:
        return f"{pattern}.*"
    near = get_close_matches(pattern, layers, n=1, cutoff=0.7)
    near = near or get_close_matches(pattern, names, n=1, cutoff=0.4)
    return near[0] if near else None


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
            "model is a DistributedDataParallel; make the Posterior of the module inside first, and then "
            "DistributedDataParallel(model)."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ValueError(
                f"the embedding {name!r} has max_norm, which changes its weights in the forward pass; "
                "build it without."
            )


def _check_hooks(chosen: list[SharedTensor]) -> None:
    """Raise if a weight has hooks: they belong to the parameter, which the model will no longer use."""
    for tensor in chosen:
        if has_hooks(tensor.parameter):
            raise ValueError(
                f"the weight {tensor.name!r} has a hook on its gradient, which would never be called; remove "
                "it before wrapping, or leave the weight out with select=."
            )


def _check_references(model: nn.Module, chosen: list[SharedTensor]) -> None:
    """Raise if a module keeps a chosen parameter where it cannot be replaced: in a container, a closure."""
    wanted = {id(tensor.parameter): tensor.name for tensor in chosen}
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _OF_TORCH:
                continue
            for item, kind in _inside(value):
                if id(item) in wanted:
                    raise ValueError(
                        f"{prefix or 'the model'} keeps the weight {wanted[id(item)]!r} in the {kind} "
                        f"{attribute!r} too, where it cannot be sampled; look it up by attribute instead, or "
                        "use nn.ParameterList."
                    )


_OF_TORCH = {
    *(name for name in vars(nn.Module()) if "forward" not in name),
    *("_flat_weights", "_flat_weight_refs"),  # of nn.RNNBase, which follows its attributes
}
"""Attributes in which torch itself keeps parameters; forward hooks are the user's."""


def _inside(value: object, depth: int = 4) -> Iterator[tuple[object, str]]:
    """What a container holds, or a function has closed over, and what kind of thing that is."""
    parts: Iterable[object] = ()
    kind = f"plain {type(value).__name__}"
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, FunctionType):
        parts, kind = (
            [c.cell_contents for c in value.__closure__ or () if not _is_bare(c)],
            "function",
        )
    elif isinstance(value, partial):
        parts, kind = [value.func, *value.args, *value.keywords.values()], "function"
    for part in parts:
        yield part, kind
        if depth:
            yield from ((item, kind) for item, _ in _inside(part, depth - 1))


def _is_bare(cell: CellType) -> bool:
    """Whether a closure's variable has no value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
