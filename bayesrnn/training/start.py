"""Starting a new run from the weights of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from bayesrnn.files import sha256_of
from bayesrnn.methods import Method
from bayesrnn.storage import copy_state
from bayesrnn.training.experiment import Prepared
from bayesrnn.training.run import Run


def started(ready: Prepared, source: Run) -> Prepared:
    """A prepared run with the weights of another, whose path and digest its settings then have.

    ValueError if that has other sizes, no weights yet or damaged ones.
    """
    config = ready.config
    for name in config.SIZES:
        ours, theirs = getattr(config, name), getattr(source.config, name)
        if ours != theirs:
            raise ValueError(
                f"{name} = {ours!r}, but {source.folder}, which this run is to start from, has {theirs!r}; "
                "give the same, or start without --from."
            )
    if ready.take_over is None:
        raise ValueError(f"a run of {config.TASK} cannot start from another; leave out --from.")
    ready.take_over(source)
    start = {"start": str(source.folder.resolve()), "start_sha256": sha256_of(source.weights)}
    return replace(ready, config=replace(config, **start))


@torch.no_grad()
def take_over(method: Method, source: Method, name_of: Callable[[str], str] = str) -> None:
    """Let a method begin with the weights that another predicts with: as its weights, or as its mean.

    Between two posteriors rho is copied too, and between two sharpened ones kappa. Where models have
    different names for the same weights, `name_of` gives the name in common.
    """
    ours = {name_of(name): weight for name, weight in method.weights().items()}
    theirs = {name_of(name): weight for name, weight in source.weights().items()}
    copy_state(ours, theirs, "the run to start from")
    if method.posterior is not None and source.posterior is not None:
        method.posterior.rho.copy_(source.posterior.rho)
    if method.sharpened is not None and source.sharpened is not None:
        method.sharpened.kappa.copy_(source.sharpened.kappa)
