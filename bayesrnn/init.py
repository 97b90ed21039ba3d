"""Initialisation: of the weights of a plain module, and of sigma.

The means start at the module's own weights, so any initialisation works, including a trained network.
A sigma rule is a function of one slot (one weight tensor); pass it as `Posterior(sigma_init=...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from bayesrnn.variational.priors import Part, of_slot
from bayesrnn.weights.layout import Layout, Slot

SigmaRule = Callable[[Slot, Tensor, object, Generator | None], Tensor]
"""(slot, its means, the prior, generator) -> sigma in the slot's shape."""


def constant(sigma: float) -> SigmaRule:
    """The same sigma everywhere."""
    return lambda slot, mu, prior, generator: torch.full_like(mu, sigma)


def proportional(fraction: float = 0.1, *, floor: float = 1e-3) -> SigmaRule:
    """sigma = fraction * root mean square of the tensor's means. The default.

    It suits a fresh network and a trained one. A matrix of zeros, with which adapters and some residual
    layers start, gets what a fresh matrix of its shape would, fraction / sqrt(fan in); a vector of zeros
    gets `floor`.
    """
    _check_positive(fraction=fraction, floor=floor)

    def rule(slot: Slot, mu: Tensor, prior: object, generator: Generator | None) -> Tensor:
        scale = mu.square().mean().sqrt()
        if mu.dim() > 1:
            scale = torch.where(scale == 0, 1 / math.sqrt(mu[0].numel()), scale)
        return (fraction * scale).clamp_min(floor).expand_as(mu)

    return rule


def per_weight(fraction: float = 0.1, *, floor: float = 1e-3) -> SigmaRule:
    """sigma = fraction * |mu| for each weight, for a network that is already trained."""
    _check_positive(fraction=fraction, floor=floor)
    return lambda slot, mu, prior, generator: (fraction * mu.abs()).clamp_min(floor)


def from_prior(scale: float = 1.0) -> SigmaRule:
    """sigma uniform in [p/4, p/2] for recurrent weights and [p/2, p] elsewhere, times `scale`.

    p is the prior's standard deviation. This is the rule in the script of the paper's authors.
    """
    _check_positive(scale=scale)

    def rule(slot: Slot, mu: Tensor, prior: object, generator: Generator | None) -> Tensor:
        stddev = getattr(prior, "stddev", None)
        if stddev is None:
            raise ValueError(
                f"sigma_init=from_prior(): the prior {type(prior).__name__} has no stddev to start "
                "from; give sigma_init a number, or use proportional()."
            )
        factor = scale * (0.5 if slot.kind == "recurrent" else 1.0)
        if isinstance(stddev, Tensor):
            uniform = torch.empty_like(mu).uniform_(0.5, 1, generator=generator)
            return uniform * factor * stddev.view(mu.shape).to(mu)
        p = factor * stddev
        return torch.empty_like(mu).uniform_(p / 2, p, generator=generator)

    return rule


def initial_sigma(
    layout: Layout,
    flat: Tensor,
    sigma_init: float | SigmaRule | None,
    prior: list[Part],
    generator: Generator | None,
) -> Tensor:
    """The initial sigma of every weight as a flat vector: from a number, a rule, or None for the default."""
    if sigma_init is None:
        rule = proportional()
    elif callable(sigma_init):
        rule = sigma_init
    elif isinstance(sigma_init, int | float):
        rule = constant(float(sigma_init))
    else:
        raise ValueError(f"sigma_init={sigma_init!r}; give a number or a rule of bayesrnn.init.")
    parts = []
    for slot in layout:
        mu = flat[slot.span].view(slot.shape)
        sigma = rule(slot, mu, of_slot(prior, slot), generator)
        if not isinstance(sigma, Tensor) or sigma.shape != mu.shape:
            raise ValueError(
                f"sigma_init gives {slot.name!r} no tensor of its shape {slot.shape}; a rule takes "
                "(slot, mu, prior, generator), such as init.proportional(0.1)."
            )
        _check_sigma(slot.name, mu, sigma)
        parts.append(sigma.to(mu).reshape(-1))
    return torch.cat(parts)


@torch.no_grad()
def uniform_(model: nn.Module, bound: float, *, generator: Generator | None = None) -> None:
    """Every parameter uniform in [-bound, bound], as in Zaremba et al. (2014); padding rows 0."""
    for parameter in model.parameters():
        parameter.uniform_(-bound, bound, generator=generator)
    _zero_padding_rows(model)


@torch.no_grad()
def fan_in_(model: nn.Module, *, generator: Generator | None = None) -> None:
    """The authors' script: truncated normal 1/sqrt(fan in), embeddings N(0, 1), output biases 0.

    The fan in of an LSTM is the size of its input plus that of its state, for the biases too.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                parameter.normal_(generator=generator)
            elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
                _truncated_normal_(parameter, _recurrent_fan_in(module, name), generator)
            elif parameter.dim() >= 2:
                _truncated_normal_(parameter, parameter[0].numel(), generator)
            elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                parameter.zero_()
    _zero_padding_rows(model)


def _recurrent_fan_in(module: nn.Module, name: str) -> int:
    """The size of input plus state for the layer and direction of a recurrent parameter."""
    suffix = (
        name.split("_", 2)[2] if name.count("_") >= 2 else ""
    )  # "l0", "l1_reverse", "" for a cell
    weights = [f"weight_{kind}_{suffix}" if suffix else f"weight_{kind}" for kind in ("ih", "hh")]
    return sum(module.get_parameter(weight).shape[1] for weight in weights)


def _zero_padding_rows(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0


def _truncated_normal_(parameter: Tensor, fan_in: int, generator: Generator | None) -> None:
    std = 1 / math.sqrt(fan_in)
    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=generator)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"sigma_init: {name}={value} must be above 0.")


def _check_sigma(name: str, mu: Tensor, sigma: Tensor) -> None:
    if mu.is_meta:
        raise ValueError(
            f"the weight {name!r} has no values yet (meta device); load the weights, then make the Posterior."
        )
    if not torch.isfinite(mu).all():
        raise ValueError(
            f"the weight {name!r} holds nan or infinite values; start from finite weights."
        )
    if not (torch.isfinite(sigma).all() and (sigma > 0).all()):
        raise ValueError(
            f"sigma_init gives {name!r} a standard deviation that is not positive and "
            f"finite (smallest {sigma.min().item():g}); every sigma must be above 0."
        )
