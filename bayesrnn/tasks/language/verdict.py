"""What the measurements say, in words: which run is ahead, and on what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from bayesrnn.evaluation.pruning_study import MAGNITUDE, SIGNAL_TO_NOISE, PruningStudy
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.summary import Finding, judge
from bayesrnn.tasks.language.comparison import Row
from bayesrnn.tasks.language.evaluation.uncertainty import Gap

CHANCE = 0.55
"""An AUROC below this is too close to chance to say that one run is ahead."""

MAX_RISE = 0.05
"""The rise in perplexity up to which weights are dropped, relative to the worst of the whole models."""


def verdict(
    rows: Sequence[Row],
    calibrations: Sequence[CalibrationRow],
    gaps: Sequence[Gap],
    studies: Sequence[PruningStudy],
    *,
    bayesian: Collection[str],
) -> list[Finding]:
    """A finding for each of perplexity, calibration, telling texts apart and pruning, where it was measured.

    Args:
        gaps: of spoilt copies of the test text, not of other texts.
        bayesian: the names of the runs with a distribution over their weights. Their predictions are averaged
            over samples, where they were sampled; those of the other runs are without sampling.
    """
    found = [
        _perplexities(rows, bayesian),
        judge(
            "Calibration",
            "ECE, how far the stated probabilities are from how often they come true; lower is better",
            _errors(calibrations, bayesian),
            lambda value: f"{value:.2%}",
            bayesian=bayesian,
        ),
        _telling_apart(gaps, bayesian),
        _pruning(studies, bayesian),
    ]
    return [finding for finding in found if finding is not None]


def _perplexities(rows: Sequence[Row], bayesian: Collection[str]) -> Finding | None:
    found = judge(
        "Perplexity",
        "the number of words the model is undecided between; lower is better",
        {row.run: _perplexity(row, row.run in bayesian) for row in rows},
        lambda value: f"{value:.1f}",
        bayesian=bayesian,
    )
    if found is None or len({row.epochs for row in rows}) == 1:
        return found
    epochs = ", ".join(f"{row.run} {row.epochs}" for row in rows)
    return replace(found, result=f"{found.result}. Not trained alike, in epochs: {epochs}")


def _perplexity(row: Row, is_bayesian: bool) -> float:
    """On the test text; nan if it was not measured."""
    sampled, plain = row.results.get("test_samples"), row.results.get("test")
    value = sampled if is_bayesian and sampled is not None else plain
    return float("nan") if value is None else value


def _errors(rows: Sequence[CalibrationRow], bayesian: Collection[str]) -> dict[str, float]:
    """The calibration error of each run."""
    counts = _counts(((row.run, row.samples) for row in rows), bayesian)
    return {
        row.run: row.calibration.calibration_error for row in rows if row.samples == counts[row.run]
    }


def _telling_apart(gaps: Sequence[Gap], bayesian: Collection[str]) -> Finding | None:
    """By entropy, a run's own uncertainty before it sees the word; the mean over the texts. Then by mutual
    information."""
    counts = _counts(((gap.model, gap.samples) for gap in gaps), bayesian)
    shown = [gap for gap in gaps if gap.samples == counts[gap.model]]
    texts = list(dict.fromkeys(gap.text for gap in shown))
    found = judge(
        "Telling real text from spoilt",
        "AUROC, how often a spoilt passage gets less certain predictions than a real one; 0.5 is chance, "
        "1 is best",
        _mean_auroc(shown, "entropy"),
        lambda value: f"{value:.3f}",
        higher_is_better=True,
        bayesian=bayesian,
    )
    if found is None:
        return None
    values = _mean_auroc(shown, "entropy")
    if max(values.values()) < CHANCE:
        listed = ", ".join(f"{value:.3f} for {run}" for run, value in values.items())
        result = f"no better than chance: {listed}. Train longer, or on more text"
        return replace(found, result=result, ahead=None)
    result = (
        f"{found.result}: by entropy, the mean over {len(texts)} spoilt copies ({', '.join(texts)})"
    )
    sampled = _mean_auroc(
        [gap for gap in shown if gap.samples and gap.model in bayesian], "mutual_information"
    )
    if sampled:
        listed = ", ".join(f"{value:.3f} for {run}" for run, value in sampled.items())
        result += f". By mutual information, what the weight samples disagree about: {listed}"
    return replace(found, result=result)


def _mean_auroc(gaps: Sequence[Gap], signal: str) -> dict[str, float]:
    runs = dict.fromkeys(gap.model for gap in gaps)
    return {run: mean(gap.auroc[signal] for gap in gaps if gap.model == run) for run in runs}


def _pruning(studies: Sequence[PruningStudy], bayesian: Collection[str]) -> Finding | None:
    """How small each run can be made at the same perplexity; then relative to its own."""
    curves = _curves(studies)
    if not curves:
        return None
    whole = {run: points[0.0] for run, points in curves.items()}
    limit = max(whole.values()) * (1 + MAX_RISE)
    against = "its own" if len(curves) == 1 else f"that of {max(whole, key=lambda run: whole[run])}"
    found = judge(
        "Pruning",
        f"the share of weights that can be set to zero with a validation perplexity of at most {limit:.1f}, "
        f"{MAX_RISE:.0%} above {against}; higher is better",
        {run: _share(points, limit) for run, points in curves.items()},
        lambda value: f"about {value:.0f}%",
        higher_is_better=True,
        bayesian=bayesian,
    )
    if found is None or len(curves) == 1:
        return found
    own = (
        f"{_share(points, points[0.0] * (1 + MAX_RISE)):.0f}% of {run}"
        for run, points in curves.items()
    )
    rise = f"{MAX_RISE:.0%} above its own perplexity"
    return replace(found, result=f"{found.result}. At {rise} it is about {' and '.join(own)}")


def _curves(studies: Sequence[PruningStudy]) -> dict[str, Mapping[float, float]]:
    """The perplexity of each run by share dropped: by signal to noise or, without sigma, magnitude."""
    found: dict[str, Mapping[float, float]] = {}
    for study in studies:
        found[study.run] = study.curves[SIGNAL_TO_NOISE]
        for name, points in study.curves.items():
            if name.startswith(f"{MAGNITUDE}, "):
                found.setdefault(name.removeprefix(f"{MAGNITUDE}, "), points)
    return found


def _share(points: Mapping[float, float], limit: float) -> float:
    """The share at which perplexity first reaches the limit, in per cent; linear between the points."""
    drops = sorted(points)
    for low, high in pairwise(drops):
        if points[high] > limit:
            return 100 * (low + (high - low) * (limit - points[low]) / (points[high] - points[low]))
    return 100 * drops[-1]


def _counts(rows: Iterable[tuple[str, int]], bayesian: Collection[str]) -> dict[str, int]:
    """The number of samples by which each run is judged."""
    found: dict[str, list[int]] = {}
    for run, samples in rows:
        found.setdefault(run, []).append(samples)
    return {run: max(own) if run in bayesian else min(own) for run, own in found.items()}
