"""What a posterior says of its weights, layer by layer: mu, sigma, signal to noise, information."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesrnn.posterior import Posterior
from bayesrnn.variational.priors import RowScaleMixture

BINS = 60
Histogram = tuple[np.ndarray, np.ndarray]
"""Bin edges, and the share of weights in each bin."""


@dataclass(frozen=True)
class LayerWeights:
    """The distributions of one layer's weights, and what they cost to describe."""

    weights: int
    mu: Histogram
    sigma: Histogram
    signal_to_noise: Histogram
    bits: float | None
    """KL[q || p] / log 2: the bits that the data have put in, beyond the prior. None for a prior that ties
    weights together, whose KL belongs to no weight alone."""


def weights_by_layer(posterior: Posterior) -> dict[str, LayerWeights]:
    """By layer; an LSTM's layers apart, each with all its matrices and biases."""
    fixed = posterior.sigma() == 0
    columns = {
        "mu": posterior.current_mu(),
        "sigma": posterior.sigma(),
        "snr": posterior.snr(),
    }
    if not isinstance(posterior.prior, RowScaleMixture):
        columns["kl"] = posterior.kl_per_weight()
    layers: dict[str, list[slice]] = {}
    for slot in posterior.layout:
        layers.setdefault(_layer(slot.name), []).append(slot.span)
    found = {
        name: {c: torch.cat([v[s][~fixed[s]] for s in spans]) for c, v in columns.items()}
        for name, spans in layers.items()
    }
    edges = {
        "mu": _linear_edges([values["mu"] for values in found.values()]),
        "sigma": _log_edges([values["sigma"] for values in found.values()]),
        "snr": _log_edges([values["snr"] for values in found.values()]),
    }
    return {
        name: LayerWeights(
            weights=len(values["mu"]),
            mu=_histogram(values["mu"], edges["mu"]),
            sigma=_histogram(values["sigma"], edges["sigma"]),
            signal_to_noise=_histogram(values["snr"], edges["snr"]),
            bits=values["kl"].double().sum().item() / math.log(2) if "kl" in values else None,
        )
        for name, values in found.items()
    }


def _layer(name: str) -> str:
    """lstm.weight_ih_l1 -> lstm layer 2; out.weight -> out."""
    owner, _, attribute = name.rpartition(".")
    layer = attribute.rpartition("_l")[2]
    return f"{owner} layer {int(layer) + 1}" if layer.isdigit() else owner or name


def _linear_edges(parts: list[Tensor]) -> np.ndarray:
    """Around 0, so far out that one weight in a thousand of some layer lies beyond."""
    bound = max(_quantile(part.abs(), 0.999) for part in parts)
    return np.linspace(-bound, bound, BINS + 1)


def _log_edges(parts: list[Tensor]) -> np.ndarray:
    low = min(_quantile(part, 0.001) for part in parts)
    high = max(_quantile(part, 0.999) for part in parts)
    low, high = max(low, high * 1e-6), high * 1.05
    return np.geomspace(low / 1.05, max(high, low * 1.2), BINS + 1)


def _histogram(values: Tensor, edges: np.ndarray) -> Histogram:
    """What lies beyond the edges is counted in the outermost bins."""
    inside = np.clip(values.cpu().double().numpy(), edges[0], edges[-1])
    counts, _ = np.histogram(inside, edges)
    return edges, counts / len(inside)


def _quantile(values: Tensor, share: float) -> float:
    """Without the limit that torch.quantile has on the number of values."""
    place = min(len(values) - 1, int(share * len(values)))
    return values.kthvalue(place + 1).values.item()
