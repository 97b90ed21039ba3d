"""The uncertainty and calibration of a set of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bayesrnn.data.corpus import load_split
from bayesrnn.data.sources import find_source
from bayesrnn.evaluation.beliefs import models_of
from bayesrnn.evaluation.calibration import Calibration, calibration
from bayesrnn.evaluation.uncertainty import (
    Contender,
    Gap,
    Text,
    add_noise,
    benchmark,
    reverse,
    shuffle,
)
from bayesrnn.methods import LangevinLearner, Learner
from bayesrnn.report.table import text_table
from bayesrnn.report.texts import labels, share_known, tokens_of
from bayesrnn.training.exported import Exported
from bayesrnn.training.run import Run

NOISE = (0.05, 0.1, 0.2, 0.5)
Progress = Callable[[str, int], None]
"""Told what is being done, and how many words of it were done since the last time."""


@dataclass(frozen=True)
class Subject:
    """A run that is examined: its weights and its text."""

    name: str
    run: Run | Exported
    learner: Learner
    tokens: Tensor

    @property
    def vocabulary(self) -> int:
        return len(self.run.vocabulary)


def subjects(
    runs: Sequence[Run | Exported], *, split: str, data: str | None, words: int, cache: Path
) -> list[Subject]:
    """Each run with its split of its text, or of `data`; `words` of it, or all with 0."""
    if words < 0:
        raise ValueError(f"words = {words} must be 0, for all, or more.")
    found = []
    for run, label in zip(runs, labels(runs), strict=True):
        tokens = tokens_of(run, split, data, cache)
        found.append(
            Subject(label, run, run.load_learner(), tokens[: words + 1] if words else tokens)
        )
    return found


def check_counts(samples: Sequence[int]) -> None:
    for count in samples:
        if count < 1:
            raise ValueError(f"samples = {count} must be at least 1; the mean is always measured.")


def sample_counts(learner: Learner, samples: Sequence[int]) -> list[int]:
    """Those numbers of samples that the learner can give; none if it cannot be sampled."""
    check_counts(samples)
    if isinstance(learner, LangevinLearner):
        return sorted({count for count in samples if count <= len(learner.samples)})
    try:
        learner.members(1, 0)
    except ValueError:
        return []
    return sorted(set(samples))


def spoilt_texts(
    subject: Subject,
    *,
    split: str = "test",
    other: str | None = None,
    noise: Sequence[float] = NOISE,
    seed: int = 0,
    cache: Path,
) -> list[Text]:
    """The subject's text reversed, shuffled and with noise, and another domain's text, no longer than it.

    Without `other` that is pydocs, if the run learnt from something else but knows most of its words.
    """
    tokens = subject.tokens
    texts = [Text("reversed", reverse(tokens)), Text("shuffled", shuffle(tokens, seed))]
    if other is not None:
        foreign = tokens_of(subject.run, split, other, cache, "--other")
        texts.append(Text(Path(other).name, foreign[: len(tokens)]))
    elif subject.run.config.data != "pydocs":
        foreign = _pydocs(subject, split, cache)
        if share_known(subject.run, foreign) > 0.5:
            texts.append(Text("pydocs", foreign[: len(tokens)]))
    texts += [Text(f"noise {rate:.0%}", add_noise(tokens, rate, seed)) for rate in noise]
    return texts


def _pydocs(subject: Subject, split: str, cache: Path) -> Tensor:
    return load_split(find_source("pydocs", cache), split, subject.run.vocabulary, cache)


def study_uncertainty(
    subject: Subject,
    texts: Sequence[Text],
    samples: Sequence[int],
    *,
    window: int = 10,
    streams: int = 20,
    seed: int = 0,
    progress: Progress = lambda what, words: None,
) -> list[Gap]:
    """The gaps of a run at rest, and for each number of samples."""
    learner = subject.learner
    contenders = [Contender(subject.name, models_of(learner))]
    counts = sample_counts(learner, samples)
    if counts:
        contenders.append(Contender(subject.name, models_of(learner, max(counts), seed), counts))
    return benchmark(
        contenders,
        Text("true", subject.tokens),
        texts,
        subject.vocabulary,
        window=window,
        streams=streams,
        progress=lambda _, text, words: progress(f"{subject.name}, {text}", words),
    )


def passes(subject: Subject, texts: Sequence[Text], samples: Sequence[int]) -> int:
    """How many words `study_uncertainty` will report to its progress."""
    ways = 2 if sample_counts(subject.learner, samples) else 1
    return ways * sum(len(text.tokens) - 1 for text in [Text("true", subject.tokens), *texts])


def gap_table(gaps: Sequence[Gap]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each text, model and number of samples."""
    headings = ["text", "run", "samples", "entropy", "gap", "MI gap", "AUROC H", "MI", "-log p"]
    cells = [
        [
            gap.text,
            gap.model,
            str(gap.samples) if gap.samples else "rest",
            f"{gap.entropy:.3f}",
            f"{gap.entropy_gap:+.3f}",
            f"{gap.mutual_information_gap:+.4f}",
            *(f"{value:.3f}" for value in gap.auroc.values()),
        ]
        for gap in gaps
    ]
    return headings, cells


def render_gaps(gaps: Sequence[Gap]) -> str:
    return text_table(*gap_table(gaps))


@dataclass(frozen=True)
class CalibrationRow:
    """The calibration of a run in one way of predicting."""

    run: str
    samples: int
    """0 for the weights at rest."""
    calibration: Calibration

    def as_json(self) -> dict:
        return {"run": self.run, "samples": self.samples, **self.calibration.as_json()}


def study_calibration(
    subject: Subject,
    samples: int,
    *,
    streams: int = 20,
    seed: int = 0,
    progress: Progress = lambda what, words: None,
) -> list[CalibrationRow]:
    """Of a run at rest, and averaged over `samples` if it can be sampled."""
    ways = [0, *(sample_counts(subject.learner, [samples]) if samples else [])]
    return [
        CalibrationRow(
            subject.name,
            count,
            calibration(
                models_of(subject.learner, count, seed),
                subject.tokens,
                subject.vocabulary,
                streams=streams,
                progress=lambda words: progress(f"{subject.name}, calibration", words),
            ),
        )
        for count in ways
    ]


def calibration_table(rows: Sequence[CalibrationRow]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each run and way of predicting."""
    headings = ["run", "samples", "nats", "accuracy", "confidence", "ECE", "Brier"]
    cells = [
        [
            row.run,
            str(row.samples) if row.samples else "rest",
            f"{row.calibration.nats:.4f}",
            f"{row.calibration.accuracy:.2%}",
            f"{row.calibration.confidence:.2%}",
            f"{row.calibration.calibration_error:.2%}",
            f"{row.calibration.brier:.4f}",
        ]
        for row in rows
    ]
    return headings, cells


def render_calibration(rows: Sequence[CalibrationRow]) -> str:
    return text_table(*calibration_table(rows))
