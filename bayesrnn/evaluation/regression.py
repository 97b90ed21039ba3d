"""How good predictions of real values are: likelihood, CRPS, errors, coverage, sharpness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesrnn.prediction import Values

COVERAGES = (0.5, 0.8, 0.9, 0.95)
LEVELS = torch.arange(1, 20, dtype=torch.float64) / 20
"""Where the distribution of the PIT is compared with a uniform one."""


@dataclass(frozen=True)
class Regression:
    """Predictions of real values against what came: means over all values, in their unit."""

    values: int
    nats: float | None
    """Mean -log density; None if a variance is 0."""
    crps: float
    """Continuous ranked probability score."""
    rmse: float
    mae: float
    """Mean absolute error, of the mean."""
    coverage: Mapping[float, float]
    """The share of values inside the central interval of each probability."""
    calibration_error: float
    """Mean |share of values below a quantile - its probability|, over the levels 0.05, 0.1, ..., 0.95."""
    sharpness: float
    """Mean width of the central 90% interval."""

    def as_json(self) -> dict:
        return asdict(self)


def summarise(values: Values, y: Tensor) -> Regression:
    """The quality of predicted values, given the true ones."""
    from torchmetrics.functional.regression import mean_absolute_error, mean_squared_error

    pit = values.cdf(y).flatten().double()  # which checks the shape of y
    mean, true = values.mean.flatten().double(), y.flatten().double()
    low, high = values.interval(0.9)
    has_density = bool((values.variances > 0).all())
    return Regression(
        values=y.numel(),
        nats=_mean(-values.log_prob(y)) if has_density else None,
        crps=_mean(values.crps(y)),
        rmse=mean_squared_error(mean, true, squared=False).item(),
        mae=mean_absolute_error(mean, true).item(),
        coverage={share: _mean((pit - 0.5).abs() <= share / 2) for share in COVERAGES},
        calibration_error=_calibration_error(pit),
        sharpness=_mean(high - low),
    )


def _calibration_error(pit: Tensor) -> float:
    """The PIT is P(value <= y): uniform if the predictions are calibrated."""
    levels = LEVELS.to(pit.device)
    return _mean(((pit[:, None] <= levels).double().mean(0) - levels).abs())


def _mean(values: Tensor) -> float:
    return values.double().mean().item()
