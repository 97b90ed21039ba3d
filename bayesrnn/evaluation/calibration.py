"""Calibration: expected calibration error, Brier score and likelihood by confidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Bin:
    """The predictions whose confidence, the probability of the likeliest class, is in [low, high]."""

    low: float
    high: float
    words: int
    confidence: float
    """Mean probability of the likeliest class."""
    accuracy: float
    """Share of predictions whose likeliest class was the true one."""
    nats: float
    """Mean -log p of the true class."""


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model, or of an ensemble's average, over a data set."""

    words: int
    accuracy: float
    confidence: float
    nats: float
    """Mean -log p of the true class."""
    brier: float
    """Mean of sum_c (p_c - [c is true])^2: from 0 to 2."""
    calibration_error: float
    """Expected calibration error: the mean |accuracy - confidence| over the bins."""
    bins: tuple[Bin, ...]
    """The bins that are not empty."""

    def as_json(self) -> dict:
        return asdict(self)


def summarise(confidence: Tensor, correct: Tensor, nats: Tensor, brier: Tensor) -> Calibration:
    """Calibration from the confidence, correctness, -log p and Brier score of each prediction."""
    from torchmetrics.functional.classification import binary_calibration_error

    error = binary_calibration_error(confidence, correct.long(), n_bins=BINS, norm="l1")
    bin_of = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
    bins = []
    for index in range(BINS):
        here = bin_of == index
        if here.any():
            bins.append(
                Bin(
                    low=index / BINS,
                    high=(index + 1) / BINS,
                    words=int(here.sum()),
                    confidence=_mean(confidence[here]),
                    accuracy=_mean(correct[here]),
                    nats=_mean(nats[here]),
                )
            )
    return Calibration(
        words=len(confidence),
        accuracy=_mean(correct),
        confidence=_mean(confidence),
        nats=_mean(nats),
        brier=_mean(brier),
        calibration_error=error.item(),
        bins=tuple(bins),
    )


def _mean(values: Tensor) -> float:
    return values.double().mean().item()
