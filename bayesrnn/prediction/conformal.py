"""Split conformal prediction: intervals and sets of classes with a guaranteed coverage.

The guarantee is for new data exchangeable with the calibration data, which the model must not have been
trained on: the share `coverage` of them, or more, is covered on average, whatever the model's errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import overload

from torch import Tensor

from bayesrnn.prediction.classes import Categorical
from bayesrnn.prediction.values import Values


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """mean +- threshold * sd: `threshold` is a number, or (n,) along `axis`."""

    threshold: Tensor
    coverage: float
    axis: int | None = None

    def interval(self, values: Values) -> tuple[Tensor, Tensor]:
        """(low, high) of new values."""
        reach = _along(self.threshold, values.mean, self.axis) * _sd(values)
        return values.mean - reach, values.mean + reach

    def __repr__(self) -> str:
        return f"ConformalIntervals({self.coverage:.0%}: mean +- {_range(self.threshold)} sd)"


@dataclass(frozen=True, eq=False)
class ConformalClasses:
    """The classes with -log p of `threshold` at most: a number, or (n,) along `axis`."""

    threshold: Tensor
    coverage: float
    axis: int | None = None

    def classes(self, prediction: Categorical) -> Tensor:
        """The set of classes of each new prediction, as a mask (..., classes); it can be empty."""
        limit = _along(self.threshold, prediction.entropy, self.axis)
        return -prediction.log_probs <= limit[..., None]

    def __repr__(self) -> str:
        return (
            f"ConformalClasses({self.coverage:.0%}: classes of probability "
            f"{_range((-self.threshold).exp())} or more)"
        )


@overload
def calibrate(
    prediction: Values, target: Tensor, coverage: float = 0.9, *, axis: int | None = None
) -> ConformalIntervals: ...
@overload
def calibrate(
    prediction: Categorical, target: Tensor, coverage: float = 0.9, *, axis: int | None = None
) -> ConformalClasses: ...
def calibrate(
    prediction: Values | Categorical,
    target: Tensor,
    coverage: float = 0.9,
    *,
    axis: int | None = None,
) -> ConformalIntervals | ConformalClasses:
    """What to make of new predictions so that the share `coverage` is right, from held-out data.

    Scores are |target - mean| / sd of `Values`, and -log p of the true class of `Categorical`; the threshold
    is their ceil((n + 1) coverage)-th smallest. With `axis` there is one for each index along that axis of
    the target, such as the steps of a forecast.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage}; use a probability such as 0.9.")
    if isinstance(prediction, Categorical):
        scores = -prediction.log_prob(target)
        return ConformalClasses(_threshold(scores, coverage, axis), coverage, axis)
    if target.shape != prediction.mean.shape:
        raise ValueError(
            f"the target has shape {tuple(target.shape)}, and the values {tuple(prediction.mean.shape)}; "
            "they must be the same."
        )
    scores = (target - prediction.mean).abs() / _sd(prediction)
    return ConformalIntervals(_threshold(scores, coverage, axis), coverage, axis)


def _threshold(scores: Tensor, coverage: float, axis: int | None) -> Tensor:
    rows = scores.flatten() if axis is None else scores.movedim(axis, 0).flatten(1)
    if rows.isnan().any():
        raise ValueError("a score is nan; leave out missing targets, and predictions of them.")
    count = rows.shape[-1]
    rank = _ceil((count + 1) * coverage)
    if rank > count:
        raise ValueError(
            f"{count} calibration points are too few for coverage={coverage}; it takes "
            f"{_ceil(coverage / (1 - coverage))} or more{'' if axis is None else ' at each index'}."
        )
    return rows.kthvalue(rank, dim=-1).values


def _ceil(number: float) -> int:
    return math.ceil(round(number, 9))  # 10 * 0.9 may be a little more than 9


def _sd(values: Values) -> Tensor:
    sd = values.variance.sqrt()
    if (sd == 0).any():
        raise ValueError(
            "a predicted sd is 0, so residuals cannot be scaled by it; let the model return "
            "(mean, variance), or predict with samples=10."
        )
    return sd


def _along(threshold: Tensor, like: Tensor, axis: int | None) -> Tensor:
    """The threshold in a shape that broadcasts to `like`."""
    if axis is None:
        return threshold
    if like.shape[axis] != len(threshold):
        raise ValueError(
            f"calibrated for {len(threshold)} indices along axis {axis}; these predictions have "
            f"{like.shape[axis]}. For a forecast axis= must be that of the steps: 0, or 1 with batch_first."
        )
    shape = [1] * like.dim()
    shape[axis] = len(threshold)
    return threshold.view(shape)


def _range(numbers: Tensor) -> str:
    low, high = numbers.min().item(), numbers.max().item()
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
