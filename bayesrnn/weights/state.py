"""Flat parameters in a model's state_dict: by weight, as an ordinary model's would be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.weights.layout import Layout


class StateByWeight:
    """Splits flat parameters when a model's state_dict is made, and joins them when one is loaded.

    mu stands under the weights' own names, so that the state of a Bayesian model is that of an ordinary one
    at the mean, and more: each other parameter stands under `{prefix}_{kind}.{weight}`.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        names: list[list[str]],
        prefix: str,
        flat: Mapping[str, nn.Parameter],
    ) -> None:
        """`names` are all names of each weight, `flat` the parameters by kind: mu, rho, ..."""
        self.layout, self.names, self.prefix, self.flat = layout, names, prefix, flat
        self._hooks = [
            model.register_state_dict_post_hook(partial(StateByWeight._split, self)),
            model.register_load_state_dict_pre_hook(self._join),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def keys(self, kind: str) -> list[list[str]]:
        """The names of each weight's part of a flat parameter."""
        if kind == "mu":
            return self.names
        return [[f"{self.prefix}_{kind}.{slot.name}"] for slot in self.layout]

    @torch.no_grad()
    def _split(self, _module: nn.Module, state: Any, prefix: str, _metadata: Any) -> None:
        """The parts are copies, since savers drop tensors that share memory."""
        for kind in self.flat:
            flat: Tensor = state.pop(f"{prefix}{self.prefix}_{kind}")
            for part, keys in zip(self.layout.split(flat), self.keys(kind), strict=True):
                state.update({prefix + key: part.detach().clone() for key in keys})

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
        for kind, present in self.flat.items():
            parts = []
            for part, keys in zip(
                self.layout.split(present.detach()), self.keys(kind), strict=True
            ):
                given = [state.pop(prefix + key) for key in keys if prefix + key in state]
                new = given[0] if given else part
                if not given:
                    missing.append(prefix + keys[0])
                if new.shape != part.shape:
                    errors.append(
                        f"size mismatch for {prefix + keys[0]}: {tuple(new.shape)} given, the model "
                        f"needs {tuple(part.shape)}."
                    )
                    new = part
                parts.append(new.detach().reshape(-1).to(part))
            state[f"{prefix}{self.prefix}_{kind}"] = torch.cat(parts)
