"""Flat parameters in a model's state_dict: by weight, as an ordinary model's would be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrnn.warn import warn

if TYPE_CHECKING:
    from bayesrnn.weights.flat import FlatWeights


class StateByWeight:
    """Splits flat parameters when a state_dict is made, and joins them when one is loaded.

    mu stands under the weights' own names, put there by the modules that own them; so the state of a Bayesian
    model, or of a part of it, is that of an ordinary one at the mean. The other parameters stand under
    `{prefix}_{kind}.{weight}` in the state of the whole model.
    """

    def __init__(self, weights: FlatWeights) -> None:
        self.weights = weights
        self._hooks = self._attach(weights.model, self._split, self._join)
        owned: dict[nn.Module, dict[str, slice]] = {}
        for slot, places in zip(weights.layout, weights.places, strict=True):
            for place in places:
                owned.setdefault(place.module, {})[place.attribute] = slot.span
        for module, spans in owned.items():
            self._hooks += self._attach(module, self._split_own, self._join_own, spans)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def keys(self, kind: str) -> list[str]:
        """The names of each weight's part of a flat parameter other than mu."""
        return [f"{self.weights.prefix}_{kind}.{slot.name}" for slot in self.weights.layout]

    @staticmethod
    def _attach(
        module: nn.Module, split: Callable[..., None], join: Callable[..., None], *more: Any
    ) -> list[Any]:
        # A partial function can be copied with the model, and torch marks the hook it is given.
        return [
            module.register_state_dict_post_hook(partial(split, *more)),
            module.register_load_state_dict_pre_hook(partial(join, *more)),
        ]

    # ------------------------------------------------------------------ the model: rho, kappa

    def _split(self, _module: nn.Module, state: Any, prefix: str, _metadata: Any) -> None:
        for kind in self.weights.flat:
            flat: Tensor = state.pop(f"{prefix}{self.weights.prefix}_{kind}").detach()
            if kind != "mu":
                parts = zip(self.keys(kind), self.weights.layout.split(flat), strict=True)
                state.update({prefix + key: part.clone() for key, part in parts})
        for names in self.weights.names():
            listed = [prefix + name for name in names if prefix + name in state]
            for name in listed[1:]:  # a tied weight is one tensor, as in the state of any model
                state[name] = state[listed[0]]

    def _join(
        self,
        _module: nn.Module,
        state: Any,
        prefix: str,
        _metadata: Any,
        _strict: bool,
        missing: list[str],
        _unexpected: list[str],
        errors: list[str],
    ) -> None:
        for kind in self.weights.flat:
            flat = self.weights.parameter(kind).detach().clone()
            if kind != "mu":
                keys = self.keys(kind)
                whole = all(prefix + slot.name in state for slot in self.weights.layout)
                if whole and not any(prefix + key in state for key in keys):
                    name = f"{prefix}{self.weights.prefix}_{kind}"
                    warn(
                        f"this state has no {name}.*, so {kind} stays as it is. It comes from an ordinary "
                        "model, or from a saver that leaves out names it does not know; posterior.save and "
                        "Posterior.load keep everything."
                    )
                for key, part in zip(keys, self.weights.layout.split(flat), strict=True):
                    _load(prefix + key, state, part, missing, errors)
            state[f"{prefix}{self.weights.prefix}_{kind}"] = flat

    # ------------------------------------------------------------------ the owners of weights: mu

    def _split_own(
        self, spans: dict[str, slice], module: nn.Module, state: Any, prefix: str, _metadata: Any
    ) -> None:
        """Copies, since savers drop tensors that share memory."""
        mu = self.weights.flat["mu"].detach()
        for attribute, span in spans.items():
            shape = getattr(module, attribute).shape
            state[prefix + attribute] = mu[span].view(shape).clone()

    def _join_own(
        self,
        spans: dict[str, slice],
        module: nn.Module,
        state: Any,
        prefix: str,
        _metadata: Any,
        _strict: bool,
        missing: list[str],
        _unexpected: list[str],
        errors: list[str],
    ) -> None:
        # After the whole model's parameters, which torch loads first; with assign=True mu is a new one.
        mu = self.weights.parameter("mu").detach()
        for attribute, span in spans.items():
            part = mu[span].view(getattr(module, attribute).shape)
            _load(prefix + attribute, state, part, missing, errors)


@torch.no_grad()
def _load(key: str, state: Any, part: Tensor, missing: list[str], errors: list[str]) -> None:
    """Copy an entry of a state over a part of a flat vector, and take it out of the state."""
    if key not in state:
        missing.append(key)
    elif state[key].shape != part.shape:
        given = tuple(state.pop(key).shape)
        errors.append(
            f"size mismatch for {key}: {given} given, the model needs {tuple(part.shape)}."
        )
    else:
        part.copy_(state.pop(key))
