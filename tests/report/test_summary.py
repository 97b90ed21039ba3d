"""The summary names the run that is ahead, and says plainly when the Bayesian one is not."""

from __future__ import annotations

import math

import pytest

from bayesrnn.report.summary import Finding, judge, summary


def _judged(values: dict[str, float], bayesian: tuple[str, ...] = ("bbb",), **how) -> Finding:
    found = judge("Loss", "lower is better", values, "{:.2f}".format, bayesian=bayesian, **how)
    assert found is not None
    return found


def test_the_bayesian_run_is_ahead():
    found = _judged({"lstm": 2.0, "bbb": 1.5})
    assert found.ahead == "bbb"
    assert found.sentence == (
        "Loss (lower is better): the Bayesian run bbb is ahead, with 1.50 against 2.00 for lstm."
    )


def test_the_bayesian_run_is_not_ahead():
    found = _judged({"lstm": 1.5, "bbb": 2.0})
    assert found.ahead == "lstm"
    assert "the Bayesian run bbb is not ahead: it has 2.00 against 1.50 for lstm" in found.result


def test_higher_may_be_better():
    assert _judged({"lstm": 1.5, "bbb": 2.0}, higher_is_better=True).ahead == "bbb"


@pytest.mark.parametrize(("other", "ahead"), [(100.4, None), (100.6, "bbb"), (99.6, None)])
def test_a_difference_below_half_a_per_cent_is_none(other, ahead):
    found = _judged({"lstm": other, "bbb": 100.0})
    assert found.ahead == ahead
    assert ("are equal" in found.result) == (ahead is None)


def test_the_best_of_each_kind_are_compared():
    found = _judged({"a": 4.0, "b": 3.0, "lstm": 2.0, "dropout": 2.5}, bayesian=("a", "b"))
    assert found.ahead == "lstm"
    assert "the best Bayesian run, b, is not ahead: it has 3.00" in found.result
    assert "2.00 for lstm, the best of the others" in found.result
    assert "dropout" not in found.result


def test_of_runs_of_one_kind_the_best_is_named():
    found = _judged({"a": 4.0, "b": 3.0, "c": 5.0}, bayesian=())
    assert found.ahead == "b"
    assert found.result == "b is ahead, with 3.00 against 4.00 for a"


def test_one_run_is_described():
    found = _judged({"bbb": 4.0})
    assert (found.result, found.ahead) == ("bbb has 4.00", None)


def test_a_run_without_a_finite_figure_is_left_out():
    assert _judged({"lstm": math.nan, "bbb": 4.0}).result == "bbb has 4.00"
    assert judge("Loss", "", {"lstm": math.inf}, str) is None


def test_the_lead_lists_the_topics():
    findings = [
        Finding("Perplexity", "x", "y", "bbb"),
        Finding("Calibration", "x", "y", "lstm"),
        Finding("Pruning", "x", "y", None),
    ]
    page = summary(findings, ["lstm", "bbb"], {"bbb"})
    assert page.lead == (
        "The Bayesian run, bbb, is ahead on perplexity; not ahead on calibration; equal on pruning."
    )
    assert summary(findings, ["bbb"], {"bbb"}).lead == ""
    assert summary(findings, ["lstm", "dropout"], ()).lead == ""


def test_the_text_is_that_of_the_page():
    finding = _judged({"<lstm>": 1.5, "bbb": 2.0})
    page = summary([finding], ["<lstm>", "bbb"], {"bbb"})
    text = page.as_text(40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert finding.sentence in " ".join(text.split())
    assert "&lt;lstm&gt;" in page.body
    assert "<lstm>" not in page.body
