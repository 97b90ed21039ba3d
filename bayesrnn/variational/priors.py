"""Priors p(theta) over the flat vector [F17, sec. 5.1].

A prior is any object with `log_prob(theta)`: a tensor whose sum is log p(theta), in nats. Everything
else is optional, and found by name:

    score(theta)                   d log p / d theta; without it autograd differentiates log_prob
    expected_log_prob(mu, sigma)   E_q[log p] per weight; without it Gauss-Hermite quadrature
    expected_score(mu, sigma)      its derivatives by mu and by sigma, for `kl_gradient="expected"`
    stddev                         a scale from which sigma can be initialised
    bind(layout)                   a prior that depends on where one weight tensor ends
    fit(mu, sigma)                 the prior re-estimated from q (empirical Bayes)
    elementwise                    true where weights are treated one by one and all alike, so that
                                   vectors may be cut into stretches and formulas compiled

So a `torch.distributions.Laplace(0.0, 0.1)` is a prior as it stands.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrnn.variational.normal import EmpiricalNormal, Normal
from bayesrnn.variational.row_mixture import RowScaleMixture
from bayesrnn.variational.scale_mixture import ScaleMixture

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout


@runtime_checkable
class Prior(Protocol):
    """What a prior must have; see the module's docstring for what it may have."""

    def log_prob(self, theta: Tensor, /) -> Tensor: ...


def score(prior: Prior, theta: Tensor) -> Tensor:
    """d log p(theta) / d theta, the prior's own or by autograd."""
    own = getattr(prior, "score", None)
    if own is not None:
        return own(theta)
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(prior.log_prob(leaf).sum(), leaf)
    return gradient


def expected_log_prob(prior: Prior, mu: Tensor, sigma: Tensor) -> Tensor:
    """E_q[log p(theta)] per weight, for q = N(mu, sigma^2): the prior's own or by quadrature."""
    own = getattr(prior, "expected_log_prob", None)
    if own is not None:
        return own(mu, sigma)
    total = torch.zeros_like(mu)
    for node, weight in _gauss_hermite(64):
        log_prob = prior.log_prob(torch.add(mu, sigma, alpha=node))
        if log_prob.shape != mu.shape:
            raise ValueError(
                f"{type(prior).__name__} ties weights together, so its KL is no sum of "
                "one-dimensional integrals; use kl(draw), which estimates it from a sample."
            )
        total.add_(log_prob, alpha=weight)
    return total


def bind(prior: Prior | RowScaleMixture | EmpiricalNormal, layout: Layout) -> Any:
    """The prior as it applies to vectors of this layout."""
    own = getattr(prior, "bind", None)
    return own(layout) if own is not None else prior


def to_config(prior: object) -> dict[str, Any] | None:
    """Name and hyper-parameters, enough for `from_config`; None for a prior of the user's own."""
    if not isinstance(prior, _NAMED):
        return None
    values = {k: v if isinstance(v, str) else float(v) for k, v in vars(prior).items()}
    return {"name": type(prior).__name__, **values}


def from_config(config: dict[str, Any]) -> Any:
    """The prior that `to_config` described."""
    known = {cls.__name__: cls for cls in _NAMED}
    values = dict(config)
    name = values.pop("name", None)
    if name not in known:
        raise ValueError(f"unknown prior {name!r}; known are {', '.join(known)}.")
    try:
        return known[name](**values)
    except TypeError as error:
        raise ValueError(f"prior {name} cannot be made from {values}: {error}") from None


_NAMED = (Normal, ScaleMixture, RowScaleMixture, EmpiricalNormal)


@cache
def _gauss_hermite(order: int) -> list[tuple[float, float]]:
    """Nodes and weights of E[f(z)] for z ~ N(0, 1)."""
    from numpy.polynomial.hermite_e import hermegauss

    nodes, weights = hermegauss(order)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))
