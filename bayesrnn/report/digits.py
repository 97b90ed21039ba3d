"""Runs of classifiers of digits: the table that compares them, and the sections of their report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median
from typing import Any

from bayesrnn.data.digits import Digits, load_digits
from bayesrnn.evaluation.classification import classify, rotate
from bayesrnn.evaluation.pruning import curve
from bayesrnn.methods import Learner, Member, PosteriorLearner
from bayesrnn.pruning import by_signal_to_noise
from bayesrnn.report.table import markdown_table, text_table
from bayesrnn.report.texts import labels
from bayesrnn.report.uncertainty import CalibrationRow
from bayesrnn.training.run import DigitsRun

ANGLES = tuple(range(0, 181, 15))
DROPS = (0.0, 0.5, 0.75, 0.95, 0.98)


@dataclass(frozen=True)
class DigitsRow:
    """One run's results: errors are shares of the examples, of the best epoch."""

    run: str
    method: str
    network: str
    weights: int
    epochs: int
    examples_per_second: float | None
    train_nats: float | None
    """As measured while training, in the last epoch."""
    kl_per_example: float | None
    valid_error: float
    test_error: float
    test_nats: float
    test_error_samples: float | None = None
    """Averaged over samples of the weights, where there are any."""
    test_nats_samples: float | None = None

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class DigitsSubject:
    """A run that is examined: its weights, its data, and an ensemble if it can be sampled."""

    name: str
    run: DigitsRun
    learner: Learner
    digits: Digits
    samples: int
    seed: int = 0

    def ways(self) -> dict[int, list[Member]]:
        """How it can predict: at rest (0), and averaged over its samples."""
        found = {0: self.learner.resting()}
        if self.samples:
            with suppress(ValueError):  # one set of weights, no dropout
                found[self.samples] = self.learner.members(self.samples, self.seed)
        return found


def digits_subjects(
    runs: Sequence[DigitsRun], *, data: str | None, samples: int, seed: int = 0
) -> list[DigitsSubject]:
    """Each run with its data, or others of the same size."""
    found, loaded = [], {}
    for run, label in zip(runs, labels(runs), strict=True):
        key = (data or run.config.data, run.config.valid, run.config.white)
        digits = loaded.setdefault(key, load_digits(*key[:2], white=key[2]))
        pixels = digits.test.x.shape[-1]
        if pixels != run.config.pixels:
            raise ValueError(
                f"{run.folder} learnt from pictures of {run.config.pixels} pixels a side; those of {key[0]} "
                f"have {pixels}. Give --data."
            )
        found.append(DigitsSubject(label, run, run.load_learner(), digits, samples, seed))
    return found


def compare_digits(
    subjects: Sequence[DigitsSubject], progress: Callable[[str], None] = lambda what: None
) -> list[DigitsRow]:
    """Errors of each run, at rest and by Monte Carlo."""
    return [_row(subject, progress) for subject in subjects]


def _row(subject: DigitsSubject, progress: Callable[[str], None]) -> DigitsRow:
    progress(subject.name)
    model, run = subject.learner.model, subject.run
    test, valid = subject.digits.test, subject.digits.valid
    ways = subject.ways()
    rest = classify(model, ways.pop(0), test.x, test.y)
    sampled = next((classify(model, members, test.x, test.y) for members in ways.values()), None)
    epochs = run.read_metrics("epoch")
    timing = [line for line in run.read_timing() if line["seconds"] > 0]
    return DigitsRow(
        run=subject.name,
        method=run.config.method,
        network=run.config.network,
        weights=sum(p.numel() for p in model.parameters()),
        epochs=len(epochs),
        examples_per_second=(
            median(line["examples"] / line["seconds"] for line in timing) if timing else None
        ),
        train_nats=epochs[-1]["train_nats"] if epochs else None,
        kl_per_example=epochs[-1]["kl_per_example"] if epochs else None,
        valid_error=classify(model, subject.learner.resting(), valid.x, valid.y).error,
        test_error=rest.error,
        test_nats=rest.nats,
        test_error_samples=None if sampled is None else sampled.error,
        test_nats_samples=None if sampled is None else sampled.nats,
    )


def digits_table(rows: Sequence[DigitsRow]) -> tuple[list[str], list[list[str]]]:
    headings = [
        *("run", "method", "network", "weights", "examples/s", "epochs", "train nats"),
        *("KL/example", "val error", "test error", "test nats", "test error MC", "test nats MC"),
    ]
    cells = [
        [
            row.run,
            row.method,
            row.network,
            f"{row.weights:,}",
            "-" if row.examples_per_second is None else f"{row.examples_per_second:,.0f}",
            str(row.epochs),
            _number(row.train_nats),
            _number(row.kl_per_example),
            f"{row.valid_error:.2%}",
            f"{row.test_error:.2%}",
            _number(row.test_nats),
            "-" if row.test_error_samples is None else f"{row.test_error_samples:.2%}",
            _number(row.test_nats_samples),
        ]
        for row in rows
    ]
    return headings, cells


def render_digits(rows: Sequence[DigitsRow], *, markdown: bool = False) -> str:
    return (markdown_table if markdown else text_table)(*digits_table(rows))


def epochs_of(run: DigitsRun) -> list[dict[str, Any]]:
    """Each epoch's metrics, with the seconds of training so far and, if there is a KL, the free energy."""
    seconds = accumulate(line["seconds"] for line in run.read_timing())
    found = []
    for line, clock in zip(run.read_metrics("epoch"), seconds, strict=False):
        values = {**line, "seconds": clock}
        if line["kl_per_example"] is not None:
            nats = line["train_nats"], line["kl_per_example"], line["kl_theta_per_example"]
            values["free_energy"] = sum(nats)
        found.append(values)
    return found


def calibration_of_digits(subject: DigitsSubject) -> list[CalibrationRow]:
    test, model = subject.digits.test, subject.learner.model
    return [
        CalibrationRow(subject.name, count, classify(model, members, test.x, test.y).calibration())
        for count, members in subject.ways().items()
    ]


@dataclass(frozen=True)
class Rotation:
    """What a run made of digits that were turned: means over the test examples, by angle in degrees."""

    model: str
    samples: int
    entropy: dict[int, float]
    mutual_information: dict[int, float]
    error: dict[int, float]


def rotations(subject: DigitsSubject, examples: int = 2000) -> list[Rotation]:
    """The first test examples turned by 0 to 180 degrees, each way of predicting."""
    test, model = subject.digits.test[:examples], subject.learner.model
    found = []
    for count, members in subject.ways().items():
        at = {a: classify(model, members, rotate(test.x, a), test.y) for a in ANGLES}
        found.append(
            Rotation(
                subject.name,
                count,
                {a: c.entropy.mean().item() for a, c in at.items()},
                {a: c.mutual_information.mean().item() for a, c in at.items()},
                {a: c.error for a, c in at.items()},
            )
        )
    return found


def pruned_errors(subject: DigitsSubject) -> dict[float, float] | None:
    """Test error with 0, 50, 75, 95 and 98% of the weights gone; None for a run without a posterior."""
    if not isinstance(subject.learner, PosteriorLearner):
        return None
    test, learner = subject.digits.test, subject.learner
    order = by_signal_to_noise(learner.posterior)
    return curve(
        order, lambda: classify(learner.model, learner.resting(), test.x, test.y).error, DROPS
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
