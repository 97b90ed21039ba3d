"""FlatWeights: the chosen weights of a module as views of one flat vector. No mathematics here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from bayesrnn.variational.layout import Kind, Layout, Slot
from bayesrnn.variational.pieces import Pieces

Select = str | Sequence[str] | Callable[[str, nn.Parameter], bool] | None
"""Which parameters: a name pattern such as "lstm.*", several of them, a predicate, or None for all."""


class FlatWeights:
    """The selected parameters of `model` as consecutive stretches of one vector, `flat`.

    The module keeps working as it did: its parameters are still `nn.Parameter`s, with the same
    names and shapes, and hold whatever is written to `flat`, or to another vector while that one is
    shown. A parameter that several modules share is one stretch; parameters that do not require a
    gradient stay out.
    """

    def __init__(self, model: nn.Module, select: Select = None) -> None:
        # torch.compile wraps a module in one whose names all begin with "_orig_mod."
        self.model = model = getattr(model, "_orig_mod", model)
        _check_model(model)
        tensors = _shared_tensors(model)
        chosen = _choose(tensors, select)
        _check_same_kind(chosen)
        _check_references(model, chosen)
        self.layout = _lay_out(chosen)
        self._places = [tensor.places for tensor in chosen]
        self._names = _all_names(model, chosen)

        self.flat = torch.cat([tensor.parameter.detach().reshape(-1) for tensor in chosen])
        self.shown = self.flat
        self._shows = 0
        self.whole = nn.Parameter(self.flat)
        self.parameters = [
            nn.Parameter(self.flat[slot.span].view(slot.shape)) for slot in self.layout
        ]

    def bind(self) -> None:
        """Put the views into the model. Until then the model is untouched."""
        for parameter, places in zip(self.parameters, self._places, strict=True):
            setattr(parameter, _MARK, True)
            for place in places:
                # A new Parameter shares the flat vector's version counter; `p.data = view` would not.
                setattr(place.module, place.attribute, parameter)

    def show(self, vector: Tensor) -> None:
        """From now on the parameters, and `whole`, are views of this vector: of `flat`, or one like it."""
        self.shown = vector
        self.whole.data = vector
        for slot, parameter in zip(self.layout, self.parameters, strict=True):
            parameter.data = vector[slot.span].view(slot.shape)
        # So that autograd notices a change of the weights between forward and backward.
        torch.autograd.graph.increment_version(self.whole)
        self._shows += 1
        # Autocast keeps low-precision copies of weights until its region ends; they are stale now.
        torch.clear_autocast_cache()

    @contextmanager
    def showing(self, vector: Tensor) -> Iterator[None]:
        """Inside the block the model holds `vector`; after it, and after an error, what it held."""
        self.check()
        before = self.shown
        try:
            self.show(vector)
            yield
            self.check()
        finally:
            try:
                self.show(before)
            except BaseException:  # interrupted half way
                self.show(before)
                raise

    def rest(self) -> Iterator[nn.Parameter]:
        """The model's trainable parameters that belong to no flat vector."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and not hasattr(parameter, _MARK):
                yield parameter

    def rest_state(self) -> dict[str, Tensor]:
        """The model's state_dict without the bound weights: buffers and ordinary parameters."""
        rest = {k: v for k, v in self.model.state_dict().items() if k not in self._names}
        for name, value in rest.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"the model's state {name!r} is a {type(value).__name__}, not a tensor; only "
                    "tensors can be saved. Return one from get_extra_state."
                )
        return rest

    def check(self) -> None:
        """Raise if a parameter of the model is no longer the view it was bound to."""
        if self.whole.data_ptr() != self.shown.data_ptr():
            raise ValueError(
                "the vector of all weights was given other memory (vector_to_parameters, or `.data =`); "
                "copy into it instead: posterior.mu.data.copy_(values)."
            )
        for slot, places, bound in zip(self.layout, self._places, self.parameters, strict=True):
            for place in places:
                owner = _submodule(self.model, place.name)
                current = None if owner is None else owner._parameters.get(place.attribute)
                if current is not bound or bound.data_ptr() != self._address(slot):
                    raise ValueError(
                        f"the weight {place.name!r} no longer belongs to this posterior: after wrapping, "
                        "the model was moved, converted or copied, a layer or weight was replaced "
                        "(.to(), .double(), deepcopy, load_state_dict(assign=True)), or another "
                        "Posterior took it. Do that first, then make the Posterior."
                    )
                if not bound.requires_grad:
                    raise ValueError(
                        f"the weight {place.name!r} was frozen after wrapping. Freeze it before, or leave "
                        "it out with select=."
                    )

    def changes(self) -> int:
        """How often anyone has written to the parameters, or to `whole`: they count their writes together.

        Not seen are writes that torch does not count: through `.data`, and by fused optimisers.
        """
        return self.whole._version - self._shows

    @contextmanager
    def own_grads(self) -> Iterator[None]:
        """Inside the block the weights start without gradients; after it they have those from before."""
        before = [parameter.grad for parameter in self.parameters]
        self.clear_grad()
        try:
            yield
        finally:
            for parameter, grad in zip(self.parameters, before, strict=True):
                parameter.grad = grad

    def take_grad(self) -> Pieces | None:
        """The gradients of all bound weights, large ones where autograd left them; a missing one is zeros.

        None if no weight has a gradient. The weights' own gradients are cleared; whoever kept one
        should not change it before it is accumulated.
        """
        grads = [parameter.grad for parameter in self.parameters]
        if all(grad is None for grad in grads):
            return None
        self.clear_grad()
        return Pieces.of(
            [
                parameter.new_zeros(parameter.shape) if grad is None else _dense(grad)
                for parameter, grad in zip(self.parameters, grads, strict=True)
            ]
        )

    def clear_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def flatten(self, tensors: Sequence[Tensor | None], out: Tensor | None = None) -> Tensor:
        """One tensor for each slot as a vector, in `out` if given; a missing one is zeros."""
        out = torch.empty_like(self.flat) if out is None else out
        for slot, tensor in zip(self.layout, tensors, strict=True):
            if tensor is None:
                out[slot.span] = 0
            else:
                out[slot.span].view(slot.shape).copy_(_dense(tensor))
        return out

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by weight name, in the weight's shape."""
        return {slot.name: vector[slot.span].view(slot.shape) for slot in self.layout}

    def _address(self, slot: Slot) -> int:
        return self.shown.data_ptr() + slot.offset * self.shown.element_size()


_MARK = "_bayesrnn_bound"


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
    """The row that stays fixed; none if the weight also serves where that row is trained."""
    rows = {
        place.module.padding_idx
        if isinstance(place.module, nn.Embedding | nn.EmbeddingBag)
        else None
        for place in tensor.places
    }
    return rows.pop() if len(rows) == 1 else None


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    """The module that holds the parameter of this name now."""
    owner: nn.Module | None = model
    for part in name.split(".")[:-1]:
        owner = None if owner is None else owner._modules.get(part)
    return owner


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_dense() if tensor.is_sparse else tensor


def _check_model(model: nn.Module) -> None:
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
            "noise. Wrap the bare module, and average posterior.mu.grad and posterior.rho.grad."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ValueError(
                f"the embedding {name!r} has max_norm, which changes its weights in the forward pass; "
                "build it without."
            )


def _check_references(model: nn.Module, chosen: list[_SharedTensor]) -> None:
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
