"""One pass over each text gives what the separate studies give."""

from __future__ import annotations

import pytest

from bayesrnn.report.progress import Work
from bayesrnn.tasks.language.evaluation.uncertainty import Text
from bayesrnn.tasks.language.examination import amount, examine, ways_of
from bayesrnn.tasks.language.trained import open_trained
from bayesrnn.tasks.language.uncertainty_study import (
    other_texts,
    study_calibration,
    study_uncertainty,
    subjects,
)


@pytest.mark.parametrize("method", ["lstm", "bbb", "sgld"])
def test_it_agrees_with_the_studies(trained, method):
    (subject,) = subjects(open_trained(trained(method)), split="test", data=None, words=173)
    texts = other_texts(subject, noise=(0.2,))
    ways, done = ways_of(subject, [1, 3], 0), []
    found = examine(
        subject, ways, texts, window=10, streams=4, work=Work(lambda _: None, advance=done.append)
    )
    gaps = study_uncertainty(subject, texts, [1, 3], window=10, streams=4)
    expected = {(gap.samples, gap.text): gap for gap in gaps}
    most = max(gap.samples for gap in gaps)
    shown = {(s, t) for s, t in expected if s in (0, most) or t == "reversed"}
    assert {(gap.samples, gap.text) for gap in found.gaps} == shown
    for gap in found.gaps:
        other = expected[gap.samples, gap.text]
        assert gap.entropy_gap == pytest.approx(other.entropy_gap, abs=1e-5)
        assert gap.mutual_information_gap == pytest.approx(other.mutual_information_gap, abs=1e-5)
        assert gap.auroc == pytest.approx(other.auroc, abs=1e-6)
    rows = study_calibration(subject, most, streams=4)
    assert [row.samples for row in found.calibrations] == [row.samples for row in rows]
    for own, row in zip(found.calibrations, rows, strict=True):
        assert own.calibration.nats == pytest.approx(row.calibration.nats, abs=1e-5)
        assert own.calibration.calibration_error == pytest.approx(
            row.calibration.calibration_error, abs=1e-5
        )
    expected_work = amount(ways, [Text("true", subject.tokens), *texts])
    assert expected_work <= sum(done) < 1.1 * expected_work  # the last of the streams is padded
