"""How well one quantity orders another."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation: 1 if both have the same order, -1 if the reverse one."""
    from torchmetrics.functional.regression import spearman_corrcoef

    return spearman_corrcoef(first.double(), second.double()).item()


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that a value of `outside` exceeds one of `inside`, counting ties as half."""
    from torchmetrics.functional.classification import binary_auroc

    values = torch.cat([inside, outside])
    _, ranks = values.unique(
        return_inverse=True
    )  # torchmetrics expects [0, 1] and applies a sigmoid to anything else
    is_outside = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    return binary_auroc(ranks.double() / max(int(ranks.max()), 1), is_outside).item()
