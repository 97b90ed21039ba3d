"""Pruning: the weights that carry least are set to zero first [F17, sec. 5.1 and appendix]."""

from __future__ import annotations

import torch
from torch import Tensor


def drop_order(score: Tensor) -> Tensor:
    """For each weight the share of weights that are dropped before it, from 0 to just below 1.

    order_i = #{j : score_j < score_i} / d, equal scores in the order of the vector. With
    score = |mu| / sigma this is the paper's order.
    """
    places = torch.arange(len(score), dtype=torch.float64, device=score.device) / len(score)
    return torch.empty_like(places).scatter_(0, score.argsort(stable=True), places)


def kept(order: Tensor, drop: float) -> Tensor:
    """Which weights stay when the share `drop` of them goes."""
    return order >= drop
