"""The verdict agrees with the figures it is given, also where the Bayesian run loses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bayesrnn.evaluation.calibration import Calibration
from bayesrnn.evaluation.pruning_study import MAGNITUDE, SIGNAL_TO_NOISE, PruningStudy
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.summary import Finding
from bayesrnn.tasks.language.comparison import Row
from bayesrnn.tasks.language.evaluation.uncertainty import Gap
from bayesrnn.tasks.language.verdict import verdict


def _row(run: str, test: float, samples: float | None = None) -> Row:
    results: dict[str, float | None] = {"valid": 1.0, "test": test}
    results |= {} if samples is None else {"test_samples": samples}
    return Row(run, run, "tiny", 10, 10, 1, None, None, None, results)


def _calibrated(run: str, samples: int, error: float) -> CalibrationRow:
    return CalibrationRow(run, samples, Calibration(100, 0.3, 0.3, 4.0, 0.8, error, ()))


def _gap(run: str, samples: int, text: str, entropy: float, information: float = 0.5) -> Gap:
    auroc = {"entropy": entropy, "mutual_information": information, "surprise": 0.5}
    return Gap(run, samples, text, 100, 0.0, 1.0, 0.1, 0.1, 0.0, auroc)


def _study(run: str, **curves: dict[float, float]) -> PruningStudy:
    order: Any = None
    named = {SIGNAL_TO_NOISE: curves.pop("own")} | {
        f"{MAGNITUDE}, {name}": points for name, points in curves.items()
    }
    return PruningStudy(run, "valid", "perplexity", named, 0.8, 100.0, order)


ROWS = [_row("lstm", 80.0), _row("bbb", 82.0, 75.0)]
CALIBRATED = [
    _calibrated("lstm", 0, 0.02),
    _calibrated("bbb", 0, 0.01),
    _calibrated("bbb", 10, 0.03),
]
GAPS = [
    _gap("lstm", 0, "reversed", 0.70),
    _gap("lstm", 0, "shuffled", 0.60),
    _gap("bbb", 0, "reversed", 0.99),
    _gap("bbb", 1, "reversed", 0.98),
    _gap("bbb", 10, "reversed", 0.80, 0.9),
    _gap("bbb", 10, "shuffled", 0.70, 0.7),
]
STUDY = _study(
    "bbb", own={0.0: 100.0, 0.5: 100.0, 0.75: 110.0}, lstm={0.0: 80.0, 0.5: 88.0, 0.75: 99.0}
)


def _by_topic(found: list[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in found}


@pytest.fixture
def found() -> dict[str, Finding]:
    return _by_topic(verdict(ROWS, CALIBRATED, GAPS, [STUDY], bayesian={"bbb"}))


def test_a_bayesian_run_is_judged_by_its_samples(found):
    assert found["Perplexity"].ahead == "bbb"
    assert "bbb is ahead, with 75.0 against 80.0 for lstm" in found["Perplexity"].sentence


def test_it_says_where_the_bayesian_run_loses(found):
    assert found["Calibration"].ahead == "lstm"
    assert "bbb is not ahead: it has 3.00% against 2.00%" in found["Calibration"].sentence


def test_texts_are_told_apart_by_the_mean_over_the_texts(found):
    finding = found["Telling real text from spoilt"]
    assert finding.ahead == "bbb"
    assert "0.750 against 0.650 for lstm" in finding.sentence
    assert "(reversed, shuffled)" in finding.sentence
    assert "mutual information" in finding.sentence
    assert "0.800 for bbb" in finding.sentence


def test_a_difference_at_chance_level_is_none():
    gaps = [_gap("lstm", 0, "reversed", 0.48), _gap("bbb", 10, "reversed", 0.54)]
    (finding,) = verdict([], [], gaps, [], bayesian={"bbb"})
    assert finding.ahead is None
    assert "no better than chance: 0.480 for lstm, 0.540 for bbb" in finding.sentence


def test_pruning_is_compared_at_the_same_perplexity(found):
    finding = found["Pruning"]  # 105, 5% above the worse of both
    assert "at most 105.0, 5% above that of bbb" in finding.meaning
    assert finding.ahead == "lstm"  # its curve ends below that
    assert "it has about 62% against about 75% for lstm" in finding.sentence
    # Relative to itself: 105 is half way from 50% to 75%; 84 half way to 50%.
    assert "5% above its own perplexity it is about 62% of bbb and 25% of lstm" in finding.sentence


def test_unequal_training_is_said():
    rows = [_row("lstm", 80.0), replace(_row("bbb", 75.0), epochs=9)]
    (finding,) = verdict(rows, [], [], [], bayesian={"bbb"})
    assert re.search(r"Not trained alike, in epochs: lstm \d+, bbb 9", finding.sentence)
    (finding,) = verdict(ROWS, [], [], [], bayesian={"bbb"})
    assert "epochs" not in finding.sentence


def test_a_curve_that_never_rises_is_prunable_to_its_end():
    study = _study("bbb", own={0.0: 100.0, 0.5: 100.0, 0.995: 104.0})
    (finding,) = verdict([], [], [], [study], bayesian={"bbb"})
    assert finding.result == "bbb has about 100%"


def test_a_dropout_run_is_judged_without_sampling():
    rows = [_row("dropout", 80.0, 60.0), _row("bbb", 75.0)]
    (finding,) = verdict(rows, [], [], [], bayesian={"bbb"})
    assert finding.ahead == "bbb"


def test_one_run_is_described_without_comparing():
    found = verdict(ROWS[1:], CALIBRATED[1:], GAPS[2:], [], bayesian={"bbb"})
    assert [finding.ahead for finding in found] == [None] * 3
    assert not any("ahead" in f.sentence or "equal" in f.sentence for f in found)


def test_figures_that_hardly_differ_are_equal():
    rows = [_row("lstm", 80.2), _row("bbb", 80.0)]
    (finding,) = verdict(rows, [], [], [], bayesian={"bbb"})
    assert finding.ahead is None
    assert "are equal, with 80.0 and 80.2 for lstm" in finding.sentence
