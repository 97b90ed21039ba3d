"""A run's predictions for the page: perplexity, calibration and uncertainty from one pass over each text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrnn.evaluation.calibration import summarise
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.progress import Work
from bayesrnn.tasks.language.evaluation.beliefs import LanguageModel, beliefs, models_of
from bayesrnn.tasks.language.evaluation.uncertainty import (
    Gap,
    Text,
    Uncertainty,
    UncertaintySum,
    check_window,
    gap_between,
    measure,
)
from bayesrnn.tasks.language.uncertainty_study import Subject

BY_COUNT = "reversed"
"""The text whose gap is shown for every number of samples; of the others only the largest number is."""


@dataclass(frozen=True)
class Examination:
    """A run's predictions on its test text, and how they change on other texts."""

    calibrations: list[CalibrationRow]
    """Without sampling, and averaged over the largest number of samples."""
    gaps: list[Gap]


@dataclass(frozen=True)
class Way:
    """A way of predicting: without sampling, or averaged over each of these numbers of weight samples."""

    models: list[LanguageModel]
    counts: list[int]
    """In ascending order; empty for none."""

    @property
    def most(self) -> int:
        return self.counts[-1] if self.counts else 0


def ways_of(subject: Subject, counts: Sequence[int], seed: int) -> list[Way]:
    """The ways in which a run can predict."""
    method = subject.trained.method
    possible = method.available(counts)
    found = [Way(models_of(method), [])]
    if possible:
        found.append(Way(models_of(method, possible[-1], seed), possible))
    return found


def amount(ways: Sequence[Way], texts: Sequence[Text]) -> int:
    """The predictions of `examine`: words of each text, for each set of weights."""
    return sum(len(way.models) * (len(text.tokens) - 1) for way in ways for text in texts)


def examine(
    subject: Subject,
    ways: Sequence[Way],
    others: Sequence[Text],
    *,
    window: int,
    streams: int,
    work: Work,
) -> Examination:
    """Predict the run's text and the others, each once in each way."""
    calibrations, gaps = [], []
    own: dict[int, dict[int, Uncertainty]] = {}
    work.begin(f"evaluating {subject.name} on the test text")
    for way in ways:
        row, own[way.most] = _own_text(subject, way, window, streams, work.advance)
        calibrations.append(row)
    for text in others:
        work.begin(f"evaluating {subject.name} on {_described(text.name)}")
        for way in ways:
            counts = way.counts if text.name == BY_COUNT else way.counts[-1:]
            found = measure(
                _counted(way.models, work.advance),
                text.tokens,
                subject.vocabulary,
                unknown=subject.unknown,
                counts=counts or None,
                window=window,
                streams=streams,
            )
            for count, other in found.items():
                samples = count if way.counts else 0
                gaps.append(
                    gap_between(subject.name, samples, text.name, own[way.most][count], other)
                )
    return Examination(calibrations, gaps)


def _own_text(
    subject: Subject, way: Way, window: int, streams: int, advance: Callable[[float], None]
) -> tuple[CalibrationRow, dict[int, Uncertainty]]:
    """Calibration with the most samples, and uncertainty with each number, from the same predictions."""
    check_window(window, len(subject.tokens) - 1)
    most = way.most or len(way.models)
    sums: dict[int, UncertaintySum] = {}
    columns: list[Tensor] = []
    passes = beliefs(
        _counted(way.models, advance),
        subject.tokens,
        subject.vocabulary,
        counts=way.counts or None,
        streams=streams,
        window=window,
    )
    for segment, by_count in passes:
        for count, belief in by_count.items():
            sums.setdefault(count, UncertaintySum(window, subject.unknown)).add(segment, belief)
        b = by_count[most]
        values = torch.stack([v.float() for v in (b.confidence, b.correct, -b.log_prob, b.brier)])
        columns.append(values[:, segment.counted])
    confidence, correct, nats, brier = torch.cat(columns, 1)
    row = CalibrationRow(subject.name, way.most, summarise(confidence, correct, nats, brier))
    return row, {count: total.value for count, total in sums.items()}


def _described(text: str) -> str:
    return f"{text} text" if text in ("reversed", "shuffled") else text


def _counted(
    models: Sequence[LanguageModel], advance: Callable[[float], None]
) -> list[LanguageModel]:
    return [_Counted(model, advance) for model in models]


class _Counted:
    """A language model that says how many words it has predicted."""

    def __init__(self, model: LanguageModel, advance: Callable[[float], None]) -> None:
        self.model, self.advance = model, advance

    @contextmanager
    def ready(self) -> Iterator[None]:
        with getattr(self.model, "ready", nullcontext)():
            yield

    def next_word_log_probs(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        result = self.model.next_word_log_probs(tokens, state)
        self.advance(tokens.numel())
        return result
