"""Knowing when an optimiser steps: fused ones are not counted, some train or decay what they should not."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


class Stepped(Protocol):
    def before_step(self, decay: dict[int, float]) -> None:
        """An optimiser is about to step the parameters with these ids, each under its weight decay."""
        ...

    def stepped(self, parameters: set[int]) -> None:
        """An optimiser has stepped the parameters with these ids."""
        ...


def tell(watcher: Stepped) -> None:
    """Tell a watcher of every step of every optimiser, for as long as it lives."""
    _watchers.add(watcher)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))
        _hooks.append(register_optimizer_step_post_hook(_after_step))


_watchers: WeakSet[Stepped] = WeakSet()
_hooks: list[Any] = []


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    decay = {
        id(p): group.get("weight_decay") or 0.0
        for group in optimizer.param_groups
        for p in group["params"]
    }
    for watcher in list(_watchers):
        watcher.before_step(decay)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for watcher in list(_watchers):
        watcher.stepped(parameters)
