"""A posterior's weights by layer: distributions of mu, sigma and signal to noise, and information."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayesrnn.posterior import Posterior
from bayesrnn.report.figures import (
    COLOURS,
    DASHES,
    axes_figure,
    colour,
    label_text,
    plain_log_ticks,
    styled,
)
from bayesrnn.report.html import picture, side_by_side
from bayesrnn.variational.priors import RowScaleMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 60
Histogram = tuple[np.ndarray, np.ndarray]
"""Bin edges, and the share of weights in each bin."""


@dataclass(frozen=True)
class LayerWeights:
    """The distributions of one layer's weights, and their information content."""

    weights: int
    mu: Histogram
    sigma: Histogram
    signal_to_noise: Histogram
    bits: float | None
    """KL[q || p] / log 2: information gained from the data, in bits. None for a prior that couples
    weights, whose KL is not a sum over weights."""


def weights_by_layer(posterior: Posterior) -> dict[str, LayerWeights]:
    """The weights of each layer; the layers of an LSTM separately, each with its matrices and biases."""
    fixed = posterior.sigma == 0
    columns = {
        "mu": posterior.mu.detach(),
        "sigma": posterior.sigma,
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


def weights_html(posterior: Posterior, key: str) -> str:
    """The distributions of a posterior's weights by layer, and the information in them."""
    layers = weights_by_layer(posterior)
    known = {
        n: (layer.bits, layer.weights) for n, layer in layers.items() if layer.bits is not None
    }
    weights = sum(layer.weights for layer in layers.values())
    note = (
        f"{weights:,} weights. The prior couples weights, so information by layer is not defined."
    )
    if known:
        total = sum(bits for bits, _ in known.values())
        note = (
            f"The {weights:,} weights hold {total / 8e6:,.2f} MB of information from the data, "
            f"{total / weights:.2f} bits each: the cost of sending them to a receiver who knows the prior."
        )
    mu = {name: layer.mu for name, layer in layers.items()}
    sigma = {name: layer.sigma for name, layer in layers.items()}
    ratio = {name: layer.signal_to_noise for name, layer in layers.items()}
    pictures = [
        ("mu", "posterior mean, mu", mu, False),
        ("sigma", "posterior standard deviation, sigma", sigma, True),
        ("snr", "signal to noise, |mu| / sigma", ratio, True),
    ]
    drawn = [
        picture(distribution(data, label, log=log), f"{key}-{name}", f"Distribution of {label}")
        for name, label, data, log in pictures
    ]
    if known:
        drawn.append(picture(information(known), f"{key}-bits", "Information by layer in bits"))
    return f"<h3>Weights</h3>{side_by_side(drawn, f'<p>{note}</p>')}"


@styled
def distribution(
    layers: Mapping[str, tuple[np.ndarray, np.ndarray]], label: str, *, log: bool = False
) -> Figure:
    """Histograms by layer, given as (bin edges, share of the layer's weights)."""
    figure, axes = axes_figure(label, "share of weights (%)")
    for index, (name, (edges, shares)) in enumerate(layers.items()):
        axes.stairs(
            100 * shares,
            edges,
            label=label_text(name),
            color=colour(index),
            ls=DASHES[index % len(DASHES)],
            lw=1.4,
        )
    if log:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.set_ylim(bottom=0)
    else:  # nearly all weights are near 0; a log scale shows the few that are not
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    axes.legend(fontsize=7.5)
    return figure


@styled
def information(bits: Mapping[str, tuple[float, int]]) -> Figure:
    """Information in each layer: the bar is the total, the label is bits per weight."""
    figure, axes = axes_figure("information beyond the prior (Mbit)", "")
    names = list(bits)
    total = [value / 1e6 for value, _ in bits.values()]
    axes.barh(range(len(names)), total, color=COLOURS[0], height=0.6)
    for row, (value, weights) in enumerate(bits.values()):
        axes.annotate(
            f" {value / weights:.2f} bits/weight",
            (max(total[row], 0), row),
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(names)), [label_text(name) for name in names])
    axes.set_xlim(right=max(total) * 1.45)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def _layer(name: str) -> str:
    """lstm.weight_ih_l1 -> lstm layer 2; out.weight -> out."""
    owner, _, attribute = name.rpartition(".")
    layer = attribute.rpartition("_l")[2]
    return f"{owner} layer {int(layer) + 1}" if layer.isdigit() else owner or name


def _linear_edges(parts: list[Tensor]) -> np.ndarray:
    """Edges symmetric about 0, wide enough for 99.9% of the weights of every layer."""
    limit = max(_quantile(part.abs(), 0.999) for part in parts)
    return np.linspace(-limit, limit, BINS + 1)


def _log_edges(parts: list[Tensor]) -> np.ndarray:
    low = min(_quantile(part, 0.001) for part in parts)
    high = max(_quantile(part, 0.999) for part in parts)
    low, high = max(low, high * 1e-6), high * 1.05
    return np.geomspace(low / 1.05, max(high, low * 1.2), BINS + 1)


def _histogram(values: Tensor, edges: np.ndarray) -> Histogram:
    """A histogram; values beyond the edges are counted in the outermost bins."""
    inside = np.clip(values.cpu().double().numpy(), edges[0], edges[-1])
    counts, _ = np.histogram(inside, edges)
    return edges, counts / len(inside)


def _quantile(values: Tensor, share: float) -> float:
    """A quantile, without the limit that torch.quantile has on the number of values."""
    rank = min(len(values) - 1, int(share * len(values)))
    return values.kthvalue(rank + 1).values.item()
