"""FlatWeights: the chosen weights of a module as one vector. No mathematics here."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from bayesrnn import torch_private
from bayesrnn.warn import warn
from bayesrnn.weights import optimisers, processes
from bayesrnn.weights.select import (
    Place,
    Select,
    SharedTensor,
    candidates_of,
    check_model,
    choose,
    lay_out,
    left_out,
)
from bayesrnn.weights.state import StateByWeight


class FlatWeights:
    """The selected weights of `model` as stretches of one vector, and the parameters that decide them.

    Once bound, what an optimiser, a saver or a framework sees of these weights are the flat parameters that
    were registered on the model (mu, rho, ...), in float32 at least. The modules themselves hold plain
    tensors with the weights' names and shapes, and gradients of their own: at rest they are views of mu,
    inside `holding()` of any other vector. A weight that several modules share is one stretch.
    """

    def __init__(self, model: nn.Module, select: Select = None) -> None:
        self.model = model = torch_private.module_inside(model)
        check_model(model)
        candidates = _candidates(model)
        chosen = choose(model, candidates, select)
        self.left_out: Sequence[str] = left_out(candidates, select)
        """Gains and biases of normalisation layers that stay ordinary parameters."""
        self.layout = lay_out(chosen)
        self.dtype = chosen[0].parameter.dtype
        self._chosen = chosen
        self.places: list[list[Place]] = [shared.places for shared in chosen]
        self.flat: dict[str, nn.Parameter] = {}
        """The flat parameters by kind: mu, rho, ..."""
        self.prefix = ""
        self._replaced: list[weakref.ref[Any]] = []
        self._blocks: list[_Block] = []
        self._step_scale: Tensor | None = None
        self._before_step: list[tuple[nn.Parameter, Tensor]] = []
        self._held: Sequence[Tensor] = ()
        self._at_rest: Sequence[Tensor] = ()

    # ------------------------------------------------------------------ what is registered

    def start(self) -> Tensor:
        """The weights' values, until they are bound, as a vector in float32 at least."""
        flat = torch.cat([shared.parameter.detach().reshape(-1) for shared in self._chosen])
        return flat.to(torch.promote_types(self.dtype, torch.float32))

    def bind(self, **parameters: nn.Parameter) -> None:
        """Register flat parameters, `mu` among them, in place of the chosen weights."""
        for other in self.owners():
            self._replaced += [weakref.ref(p) for p in other.flat.values()]
            other.release()
        self._replaced += [weakref.ref(shared.parameter) for shared in self._chosen]
        del self._chosen
        self.prefix = next(p for p in _prefixes() if not hasattr(self.model, f"{p}_mu"))
        for place in self._all_places():
            delattr(place.module, place.attribute)
        for kind, parameter in parameters.items():
            self.register(kind, parameter)
        self.refresh()
        self._state = StateByWeight(self)
        self._loaded = self.model.register_load_state_dict_post_hook(self._after_load)
        owners = self.model.__dict__.setdefault("_bayesrnn", [])
        owners.append(self)
        torch_private.after_apply(self.model, owners)
        optimisers.tell(self)

    def owners(self) -> list[FlatWeights]:
        """Those that have some of these weights already, until these are bound."""
        return [other for other in _bound_in(self.model) if self._spots() & other._spots()]

    def register(self, kind: str, parameter: nn.Parameter) -> None:
        """Make a flat parameter one of the model's own."""
        self.flat[kind] = parameter
        self.model.register_parameter(f"{self.prefix}_{kind}", parameter)

    def parameter(self, kind: str) -> nn.Parameter:
        """The flat parameter of this kind, as the model has it now."""
        return self.model.get_parameter(f"{self.prefix}_{kind}")

    def ordinary_parameters(self) -> Iterator[nn.Parameter]:
        """The model's trainable parameters that belong to no flat vector."""
        flat = self._all_flat()
        for parameter in self.model.parameters():
            if parameter.requires_grad and id(parameter) not in flat:
                yield parameter

    def frozen(self) -> list[str]:
        """The names of the model's ordinary parameters that are not trained."""
        flat = self._all_flat()
        named = self.model.named_parameters(remove_duplicate=False)
        return [name for name, p in named if not p.requires_grad and id(p) not in flat]

    def ordinary_state(self) -> dict[str, Tensor]:
        """The model's state_dict without what is bound: buffers and ordinary parameters."""
        own = {
            f"{path}.{key}" if path else key
            for path, module in self.model.named_modules(remove_duplicate=False)
            for weights in module.__dict__.get("_bayesrnn", ())
            for key in weights._state_keys()
        }
        rest = {k: v for k, v in self.model.state_dict().items() if k not in own}
        for name, value in rest.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"the model's state {name!r} is a {type(value).__name__}, not a tensor; only "
                    "tensors can be saved. Return one from get_extra_state."
                )
        return rest

    @torch.no_grad()
    def release(self) -> None:
        """Make the model an ordinary one again, with its weights at mu."""
        for leaf, places in zip(self._at_rest, self.places, strict=True):
            parameter = nn.Parameter(leaf.detach().clone())
            for place in places:
                delattr(place.module, place.attribute)
                setattr(place.module, place.attribute, parameter)
        for kind in self.flat:
            delattr(self.model, f"{self.prefix}_{kind}")
        self._state.remove()
        self._loaded.remove()
        owners = self.model.__dict__["_bayesrnn"]
        owners.remove(self)
        if not owners:
            torch_private.forget_apply(self.model)
            del self.model.__dict__["_bayesrnn"]
        self._held = self._at_rest = ()

    # ------------------------------------------------------------------ what the model holds

    @torch.no_grad()
    def leaves(self, vector: Tensor) -> list[Tensor]:
        """A vector as tensors of the weights' shapes, each a leaf of autograd.

        They share the vector's memory, and autograd notices a change of it between forward and backward.
        Where the model has another dtype they share that of a cast copy.
        """
        with torch.inference_mode(False):
            flat = vector.detach().to(self.dtype)
            parts = zip(flat.split(self.layout.sizes), self.layout.slots, strict=True)
            return [part.view(slot.shape).detach().requires_grad_() for part, slot in parts]

    @contextmanager
    def holding(self, leaves: Sequence[Tensor] | None) -> Iterator[None]:
        """Inside the block the model holds these tensors, or with None the mean; after it, what it held.

        There is one model: blocks of several threads or tasks cannot be open at the same time.
        """
        self.check()
        block = self._open(leaves)
        try:
            self._hold(self._wanted())
            with processes.checking_wrapper(self.model, self.flat):
                yield
            self.check()
        finally:
            last = self._blocks[-1] is block
            self._blocks = [other for other in self._blocks if other is not block]
            try:
                self._hold(self._wanted())
            except BaseException:  # interrupted half way
                self._hold(self._wanted())
                raise
        if not last:
            raise ValueError(
                "blocks of sample() were closed in another order than they were opened, so the model may "
                "have held another block's weights inside this one. Close the inner block first; in "
                "generators and tasks, give each its own copy of the posterior (copy.deepcopy)."
            )

    def _open(self, leaves: Sequence[Tensor] | None) -> _Block:
        """A new block on top of those of the same thread and task."""
        block = _Block(leaves, _current_thread_and_task())
        with _OPENING:
            if self._blocks and self._blocks[-1].owner != block.owner:
                raise ValueError(
                    "the model holds weights sampled in another thread or task. Take turns with a lock, or "
                    "give each its own copy of the posterior (copy.deepcopy)."
                )
            self._blocks.append(block)
        return block

    def _wanted(self) -> Sequence[Tensor]:
        """What the innermost open block holds; outside all blocks, and once released, the mean."""
        leaves = self._blocks[-1].leaves if self._blocks else None
        return self._at_rest if leaves is None or not self._at_rest else leaves

    def resting(self) -> Sequence[Tensor]:
        """The tensors over mu that the model holds outside all blocks."""
        self.follow_mean()
        return self._at_rest

    def follow_mean(self) -> None:
        """Notice that mu has other memory, or, where the model has another dtype, other values."""
        if self._at_rest and self._mean_seen() != self._seen:
            self.refresh()

    def _mean_seen(self) -> tuple[int, ...]:
        """What the tensors over mu depend on."""
        mu = self.flat["mu"]
        cast = self.dtype != mu.dtype
        return (mu.data_ptr(), *(torch_private.versions(mu) if cast else ()))

    def model_weights(self) -> dict[str, Tensor]:
        """What the model predicts with at rest, by name: the tensors over mu, and the ordinary parameters."""
        flat = {id(parameter) for parameter in self.flat.values()}
        ordinary = {n: p for n, p in self.model.named_parameters() if id(p) not in flat}
        bound = {slot.name: leaf for slot, leaf in zip(self.layout, self._at_rest, strict=True)}
        return {**bound, **ordinary}

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of these, by name: views into that of mu, and those of the ordinary parameters."""
        mu, flat = self.flat["mu"], {id(parameter) for parameter in self.flat.values()}
        assert mu.grad is not None
        ordinary = {n: p.grad for n, p in self.model.named_parameters() if id(p) not in flat}
        return self.named(mu.grad) | {n: g for n, g in ordinary.items() if g is not None}

    @property
    def at_rest(self) -> bool:
        """Whether the model holds the mean."""
        return self._held is self._at_rest

    def refresh(self) -> None:
        """Follow mu to other memory or another device; for a model in another dtype, cast it anew."""
        resting = self.at_rest
        self.flat.update({kind: self.parameter(kind) for kind in self.flat})
        self._at_rest = self.leaves(self.flat["mu"])
        self._seen = self._mean_seen()
        if resting:
            self._hold(self._at_rest)

    def check(self) -> None:
        """Raise if a module no longer holds the tensor it was given."""
        if not self._at_rest:
            raise ValueError(
                "the model no longer belongs to this posterior: another Posterior took it, or it was "
                "released."
            )
        mu = self.flat["mu"]
        if not mu.requires_grad:
            raise ValueError(
                "the posterior was frozen with its model after wrapping. Freeze before wrapping, or leave "
                "weights out with select=."
            )
        self.follow_mean()
        modules = dict(self.model.named_modules(remove_duplicate=False))
        for places, tensor, address in zip(self.places, self._held, self._addresses, strict=True):
            for place in places:
                owner = modules.get(place.name.rpartition(".")[0])
                present = getattr(owner, place.attribute, None)
                if present is not tensor or tensor.data_ptr() != address:
                    raise ValueError(
                        f"the weight {place.name!r} no longer belongs to this posterior: after wrapping, a "
                        "layer or weight was replaced, or another Posterior took it. Do that first, then "
                        "make the Posterior."
                    )
                if not tensor.requires_grad:
                    raise ValueError(
                        f"the weight {place.name!r} was frozen after wrapping. Freeze it before, or leave "
                        "it out with select=."
                    )

    @torch.no_grad()
    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """One tensor for each weight as a vector of mu's dtype; a missing one is zeros. None if all are."""
        if all(tensor is None for tensor in tensors):
            return None
        flat = torch.empty_like(self.flat["mu"])
        for slot, tensor in zip(self.layout, tensors, strict=True):
            if tensor is None:
                flat[slot.span] = 0
            else:  # unlike torch.cat, copy_ uses all threads
                dense = tensor.to_dense() if tensor.is_sparse else tensor
                flat[slot.span].view(slot.shape).copy_(dense)
        return flat

    def names(self) -> list[list[str]]:
        """Every name of each weight in the model's state_dict, also in modules that stand twice."""
        paths: dict[int, list[str]] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            paths.setdefault(id(module), []).append(path)
        return [
            [
                f"{path}.{place.attribute}" if path else place.attribute
                for place in places
                for path in paths.get(id(place.module), ())
            ]
            for places in self.places
        ]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by weight name, in the weight's shape."""
        names = (slot.name for slot in self.layout)
        return dict(zip(names, self.layout.split(vector), strict=True))

    # ------------------------------------------------------------------ helpers

    def _hold(self, leaves: Sequence[Tensor]) -> None:
        self._held = leaves
        if not leaves:
            return  # the model was released
        self._addresses = [tensor.data_ptr() for tensor in leaves]
        for places, tensor in zip(self.places, leaves, strict=True):
            for place in places:
                setattr(place.module, place.attribute, tensor)

    def _all_flat(self) -> set[int]:
        """The ids of the flat parameters of the model, whoever registered them."""
        return {id(p) for owner in _bound_in(self.model) for p in owner.flat.values()}

    def _all_places(self) -> list[Place]:
        return [place for places in self.places for place in places]

    def _state_keys(self) -> list[str]:
        """Every name under which the model's state_dict lists a part of a flat parameter."""
        others = [key for kind in self.flat if kind != "mu" for key in self._state.keys(kind)]
        return [*(name for names in self.names() for name in names), *others]

    def _spots(self) -> set[tuple[int, str]]:
        return {(id(place.module), place.attribute) for place in self._all_places()}

    def _after_load(self, _module: nn.Module, _incompatible: Any) -> None:
        self.refresh()

    def follow(self, fn: Callable[[Tensor], Tensor], apply: Callable[[], None]) -> None:
        """The model is moved or converted: mu and the others go along, but stay in float32 at least."""
        before = {
            kind: (p.data, None if p.grad is None else p.grad.data) for kind, p in self.flat.items()
        }
        apply()
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=before["mu"][0].device)).dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        for kind, (values, grad) in before.items():
            parameter = self.parameter(kind)
            if parameter.dtype != wide:
                parameter.data = values.to(parameter.device, wide)
                parameter.grad = None if grad is None else grad.to(parameter.device, wide)
        self.refresh()

    def scale_steps(self, factors: Mapping[str, float]) -> None:
        """Let every step go only so far, for weights by name pattern; the first that matches counts."""
        for pattern, factor in factors.items():
            if not (isinstance(factor, int | float) and 0 <= factor < math.inf):
                raise ValueError(f"scale_lr: {pattern!r} has {factor}; use a number, 0 or more.")
            if not any(fnmatchcase(slot.name, pattern) for slot in self.layout):
                names = ", ".join(slot.name for slot in self.layout.slots[:6])
                raise ValueError(
                    f"scale_lr: {pattern!r} matches no Bayesian weight, such as {names}."
                )
        scale = torch.ones(self.layout.size)
        for slot in self.layout:
            scale[slot.span] = next(
                (float(f) for pattern, f in factors.items() if fnmatchcase(slot.name, pattern)), 1.0
            )
        self._step_scale = scale if (scale != 1).any() else None

    def before_step(self, decay: dict[int, float]) -> None:
        """An optimiser is about to step the parameters with these ids, each under its weight decay."""
        if self._step_scale is not None:
            stepped = [p for p in self.flat.values() if id(p) in decay]
            self._before_step = [(p, p.detach().clone()) for p in stepped]
        for kind, parameter in self.flat.items():
            if kind != "mu" and decay.get(id(parameter)):
                raise ValueError(
                    f"weight_decay={decay[id(parameter)]:g} would pull {kind} to 0, which is no prior of "
                    "the weights. Make the optimiser with weight_decay=0: the posterior's prior takes its "
                    "place."
                )

    def stepped(self, parameters: set[int]) -> None:
        """An optimiser has stepped the parameters with these ids."""
        if not self._at_rest:
            return
        self._shorten_step()
        mu = self.flat["mu"]
        if id(mu) in parameters:
            increment_version(mu)  # which a fused optimiser does not
            self.follow_mean()
            self._warn_of_gradients_at_rest()
        elif any(id(old()) in parameters for old in self._replaced if old() is not None):
            warn(
                "this optimiser was made before the model became Bayesian, and trains weights that are no "
                "longer used. Make it after Posterior(model, ...), of model.parameters()."
            )

    @torch.no_grad()
    def _shorten_step(self) -> None:
        """Go back part of the way, where a weight has a smaller learning rate."""
        for parameter, before in self._before_step:
            scale = self._step_scale
            assert scale is not None
            self._step_scale = scale = scale.to(parameter)
            parameter.copy_(torch.lerp(before, parameter, scale))
        self._before_step = []

    def _warn_of_gradients_at_rest(self) -> None:
        if any(leaf.grad is not None for leaf in self._at_rest):
            for leaf in self._at_rest:
                leaf.grad = None
            warn(
                "a loss went backward at the mean, outside `with posterior.sample()`; the optimiser sees "
                "nothing of that. Compute the loss inside the block, then call accumulate_grad."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_replaced": [], "_blocks": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy holds its own mean, also where it was made inside a block."""
        self.__dict__.update(state)
        if self._at_rest:
            mean = self.layout.split(self.flat["mu"].detach().to(self.dtype))
            for leaf, part in zip(self._held, mean, strict=True):
                leaf.data, leaf.grad = part, None
            self._at_rest, self._seen = self._held, ()
            self._addresses = [leaf.data_ptr() for leaf in self._held]
        optimisers.tell(self)


@dataclass(frozen=True, eq=False)
class _Block:
    """An open block: what the model holds inside it (None for the mean), and who opened it."""

    leaves: Sequence[Tensor] | None
    owner: tuple[int, int]


_OPENING = threading.Lock()


def _current_thread_and_task() -> tuple[int, int]:
    task = None
    if "asyncio" in sys.modules:
        with suppress(RuntimeError):  # no event loop in this thread
            task = sys.modules["asyncio"].current_task()
    return threading.get_ident(), 0 if task is None else id(task)


def release_all(model: nn.Module) -> None:
    """Make a model and its submodules ordinary again, with their weights at mu."""
    for weights in _bound_in(model):
        weights.release()


def is_bound(model: nn.Module) -> bool:
    """Whether weights of the model or of a submodule belong to flat parameters."""
    return bool(_bound_in(model))


def _bound_in(model: nn.Module) -> list[FlatWeights]:
    """The flat weights of a model and of its submodules."""
    return [w for module in model.modules() for w in module.__dict__.get("_bayesrnn", ())]


def _candidates(model: nn.Module) -> list[SharedTensor]:
    """What can be chosen: the model's parameters, and weights that another FlatWeights holds."""
    bound = _bound_in(model)
    leave_out = {id(p) for owner in bound for p in owner.flat.values()}
    found = candidates_of(model, leave_out)
    prefixes = {id(module): prefix for prefix, module in model.named_modules()}
    for owner in bound:
        for tensor, places in zip(owner.resting(), owner.places, strict=True):
            named = [
                Place(f"{prefixes[id(p.module)]}.{p.attribute}".lstrip("."), p.module, p.attribute)
                for p in places
            ]
            found.append(SharedTensor(tensor, named))
    return found


def _prefixes() -> Iterator[str]:
    yield "posterior"
    number = 2
    while True:
        yield f"posterior{number}"
        number += 1
