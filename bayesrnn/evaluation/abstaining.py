"""Abstaining when unsure: the mean loss of the predictions that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, repr=False, eq=False)
class RiskCoverage:
    """The mean loss of the surest predictions, for each share of them that is kept."""

    coverage: Tensor  # (n,): 1/n, 2/n, ..., 1
    risk: Tensor  # (n,)
    """Mean loss of what is kept, the least uncertain first; equally uncertain ones in random order."""
    oracle: Tensor  # (n,)
    """The same in the order of the losses themselves: the least that is possible."""
    uncertainty: Tensor  # (n,)
    """In increasing order."""

    @property
    def random(self) -> float:
        """The mean loss of all, which is also that of any share in random order, and the area under it."""
        return self.risk[-1].item()

    @property
    def area(self) -> float:
        """Under the risk, over the coverage from 0 to 1: less is better."""
        return self.risk.mean().item()

    @property
    def oracle_area(self) -> float:
        return self.oracle.mean().item()

    def at(self, coverage: float) -> float:
        """The mean loss if this share is kept."""
        return self.risk[self._kept(coverage) - 1].item()

    def threshold(self, coverage: float) -> float:
        """The uncertainty above which to abstain, to keep this share."""
        return self.uncertainty[self._kept(coverage) - 1].item()

    def _kept(self, coverage: float) -> int:
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage={coverage}; use a share above 0, up to 1.")
        return max(1, round(coverage * len(self.risk)))

    def __repr__(self) -> str:
        return (
            f"RiskCoverage({len(self.risk):,} predictions, mean loss {self.random:.3g}, of the surest half "
            f"{self.at(0.5):.3g};\n  area {self.area:.3g}, oracle {self.oracle_area:.3g}, "
            f"random {self.random:.3g})"
        )


def risk_coverage(uncertainty: Tensor, loss: Tensor) -> RiskCoverage:
    """Keep the predictions of least uncertainty: what is their mean loss?

    Any uncertainty will do (an entropy, a variance), and any loss (errors as 0 and 1, nats, |y - mean|).
    """
    if uncertainty.shape != loss.shape or not loss.numel():
        raise ValueError(
            f"uncertainty has shape {tuple(uncertainty.shape)}, and loss {tuple(loss.shape)}; they must be "
            "the same, and not empty."
        )
    uncertainty, loss = uncertainty.flatten(), loss.flatten().double()
    if uncertainty.isnan().any() or loss.isnan().any():
        raise ValueError("an uncertainty or a loss is nan; leave such predictions out.")
    count = torch.arange(1, loss.numel() + 1, dtype=torch.float64, device=loss.device)
    ordered, order = uncertainty.sort()
    kept = _mean_over_ties(loss[order], ordered)
    return RiskCoverage(
        coverage=count / loss.numel(),
        risk=kept.cumsum(0) / count,
        oracle=loss.sort().values.cumsum(0) / count,
        uncertainty=ordered,
    )


def _mean_over_ties(loss: Tensor, uncertainty: Tensor) -> Tensor:
    """Each loss as the mean of those with the same uncertainty: what a random order gives on average."""
    _, group, size = uncertainty.unique_consecutive(return_inverse=True, return_counts=True)
    return (loss.new_zeros(len(size)).index_add_(0, group, loss) / size)[group]
