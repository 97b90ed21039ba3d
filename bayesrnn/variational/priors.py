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
    vectors                        the same where each weight has parameters of its own: these, such that
                                   type(prior)(*vectors) is the prior, and stretches of them that of a stretch

So a `torch.distributions.Laplace(0.0, 0.1)` is a prior as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrnn.variational.centred import Centred
from bayesrnn.variational.gaussian import sigma_from_rho
from bayesrnn.variational.grouped import Grouped
from bayesrnn.variational.normal import EmpiricalNormal, Normal, VectorNormal
from bayesrnn.variational.row_mixture import RowScaleMixture
from bayesrnn.variational.scale_mixture import ScaleMixture

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout, Slot


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


class Part(NamedTuple):
    """A stretch of the flat vector and the prior of its weights."""

    span: slice
    prior: Any

    def at(self, mu: Tensor, rho: Tensor) -> Part:
        """The same, its learnt hyper-parameters and its memory brought up to date with q."""
        prior = self.prior
        if hasattr(prior, "fit"):
            prior = prior.fit(mu[self.span], sigma_from_rho(rho[self.span]))
        elif isinstance(prior, VectorNormal):
            prior = prior.to(mu)
        return Part(self.span, prior)


def bind(prior: Any, layout: Layout) -> list[Part]:
    """The prior as it applies to vectors of this layout."""
    parts, start = [], 0
    for piece, its in prior.split(layout) if isinstance(prior, Grouped) else [(layout, prior)]:
        bound = its.bind(piece) if hasattr(its, "bind") else its
        parts.append(Part(slice(start, start + piece.size), bound))
        start += piece.size
    return parts


def of_slot(parts: list[Part], slot: Slot) -> Any:
    """The prior of one weight tensor."""
    for part in parts:
        if part.span.start <= slot.offset < part.span.stop:
            if isinstance(part.prior, VectorNormal):
                offset = slot.offset - part.span.start
                return part.prior.on(slice(offset, offset + slot.size))
            return part.prior
    raise ValueError(f"{slot.name!r} lies in no part of the prior.")


def to_config(prior: object) -> dict[str, Any] | None:
    """Name and hyper-parameters, enough for `from_config`; None for a prior of the user's own."""
    if isinstance(prior, Grouped):
        groups = [[pattern, to_config(its)] for pattern, its in prior.groups.items()]
        known = all(config is not None for _, config in groups)
        return {"name": "Grouped", "groups": groups} if known else None
    if isinstance(prior, Centred):
        sigma = None if isinstance(prior.sigma, Mapping) else float(prior.sigma)
        return {"name": "Centred", "sigma": sigma}
    if not isinstance(prior, _NAMED):
        return None
    values = {k: v if isinstance(v, str) else float(v) for k, v in vars(prior).items()}
    return {"name": type(prior).__name__, **values}


def tensors_of(prior: object, layout: Layout) -> dict[str, Tensor]:
    """What `from_config` needs beside the configuration: the tensors of a prior around given weights."""
    if isinstance(prior, Grouped):
        return {
            f"{number}.{name}": tensor
            for number, its in enumerate(prior.groups.values())
            for name, tensor in tensors_of(its, layout).items()
        }
    if not isinstance(prior, Centred):
        return {}
    prior = prior.restricted_to(layout)
    sigma = prior.sigma if isinstance(prior.sigma, Mapping) else {}
    return {
        **{f"weights.{name}": tensor for name, tensor in prior.weights.items()},
        **{f"sigma.{name}": tensor for name, tensor in sigma.items()},
    }


def from_config(config: dict[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Any:
    """The prior that `to_config` and `tensors_of` described."""
    try:
        return _from_config(dict(config), tensors or {})
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"the prior cannot be made from {str(config)[:200]}: {said}.") from None


def _from_config(values: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    name = values.pop("name", None)
    if name == "Grouped":
        groups = {}
        for number, group in enumerate(values["groups"]):
            if len(group) != 2:
                raise ValueError(f"a group of a prior is a pattern and a prior, not {group!r}.")
            groups[group[0]] = _from_config(dict(group[1]), _under(f"{number}.", tensors))
        return Grouped(groups)
    if name == "Centred":
        sigma = values["sigma"]
        width = _under("sigma.", tensors) if sigma is None else sigma
        return Centred(_under("weights.", tensors), width)
    known = {cls.__name__: cls for cls in _NAMED}
    if name not in known:
        raise ValueError(f"unknown prior {name!r}; known are {', '.join(known)}.")
    return known[name](**values)


_NAMED = (Normal, ScaleMixture, RowScaleMixture, EmpiricalNormal)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@cache
def _gauss_hermite(order: int) -> list[tuple[float, float]]:
    """Nodes and weights of E[f(z)] for z ~ N(0, 1)."""
    from numpy.polynomial.hermite_e import hermegauss

    nodes, weights = hermegauss(order)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))
