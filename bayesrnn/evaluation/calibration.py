"""Is a model right as often as it says? Calibration error, Brier score and likelihood by confidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Bin:
    """The words of which the likeliest guess had a probability between `low` and `high`."""

    low: float
    high: float
    words: int
    confidence: float
    """Mean probability of the likeliest word."""
    accuracy: float
    """How often it came."""
    nats: float
    """Mean -log p of the word that came."""


@dataclass(frozen=True)
class Calibration:
    """Of one model, or the average of some, over a text."""

    words: int
    accuracy: float
    confidence: float
    nats: float
    """-log p per word."""
    brier: float
    """sum_w (p_w - [w came])^2, per word: from 0 to 2."""
    calibration_error: float
    """Expected |accuracy - confidence| over bins of confidence."""
    bins: tuple[Bin, ...]
    """Those that hold a word."""

    def as_json(self) -> dict:
        return asdict(self)


def summarise(confidence: Tensor, correct: Tensor, nats: Tensor, brier: Tensor) -> Calibration:
    """Calibration from what is known of each guess."""
    from torchmetrics.functional.classification import binary_calibration_error

    error = binary_calibration_error(confidence, correct.long(), n_bins=BINS, norm="l1")
    place = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
    bins = []
    for index in range(BINS):
        here = place == index
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
