"""Runs on digits: the comparison table, and the measurements in their report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median
from typing import Any

from bayesrnn.evaluation.pruning import curve
from bayesrnn.methods import Member, Method
from bayesrnn.pruning import by_signal_to_noise
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.tasks.digits.config import DigitsConfig
from bayesrnn.tasks.digits.data import Digits, load_digits
from bayesrnn.tasks.digits.evaluation import classify, rotate
from bayesrnn.tasks.digits.task import build_method
from bayesrnn.training.experiment import Comparison, Progress
from bayesrnn.training.run import Run, labels

ANGLES = tuple(range(0, 181, 15))
DROPS = (0.0, 0.5, 0.75, 0.95, 0.98)


@dataclass(frozen=True)
class Row:
    """One run's results at its best epoch; errors are shares of the examples."""

    run: str
    method: str
    network: str
    weights: int
    epochs: int
    examples_per_second: float | None
    train_nats: float | None
    """Training loss of the last epoch, at the weights trained with."""
    kl_per_example: float | None
    valid_error: float
    test_error: float
    test_nats: float
    test_error_samples: float | None = None
    """Error of the average over weight samples, if the run can be sampled."""
    test_nats_samples: float | None = None

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Subject:
    """A run to evaluate: its weights, its data and the number of weight samples."""

    name: str
    run: Run
    config: DigitsConfig
    method: Method
    digits: Digits
    samples: int
    seed: int = 0

    def ways(self) -> dict[int, list[Member]]:
        """The ensembles to predict with, by number of samples: 0 for none, and `samples` if possible."""
        counts = self.method.available([self.samples]) if self.samples else []
        sampled = {count: self.method.members(count, self.seed) for count in counts}
        return {0: self.method.resting(), **sampled}


def subjects(
    runs: Sequence[Run], *, data: str | None, samples: int, seed: int = 0
) -> list[Subject]:
    """Each run with its data, or with `data`, whose images must have the same size."""
    found, loaded = [], {}
    for run, label in zip(runs, labels(runs), strict=True):
        config = run.config
        assert isinstance(config, DigitsConfig)
        key = (data or config.data, config.valid, config.white)
        if key not in loaded:
            loaded[key] = load_digits(*key[:2], white=key[2])
        digits = loaded[key]
        pixels = digits.test.x.shape[-1]
        if pixels != config.pixels:
            raise ValueError(
                f"{run.folder} was trained on images of {config.pixels}x{config.pixels} pixels; those of "
                f"{key[0]} have {pixels}x{pixels}. Give --data."
            )
        method = run.load_weights(build_method(config))
        found.append(Subject(label, run, config, method, digits, samples, seed))
    return found


def compare(subjects: Sequence[Subject], progress: Progress = lambda what: None) -> list[Row]:
    """The errors of each run, at the mean weights and by Monte Carlo."""
    return [_row(subject, progress) for subject in subjects]


def _row(subject: Subject, progress: Progress) -> Row:
    progress(subject.name)
    model, run = subject.method.model, subject.run
    test, valid = subject.digits.test, subject.digits.valid
    ways = subject.ways()
    at_mean = classify(model, ways.pop(0), test.x, test.y)
    sampled = next((classify(model, members, test.x, test.y) for members in ways.values()), None)
    epochs = run.read_metrics("epoch")
    timing = [line for line in run.read_timing() if line["seconds"] > 0]
    return Row(
        run=subject.name,
        method=subject.config.method,
        network=subject.config.network,
        weights=sum(weight.numel() for weight in subject.method.weights().values()),
        epochs=len(epochs),
        examples_per_second=(
            median(line["examples"] / line["seconds"] for line in timing) if timing else None
        ),
        train_nats=epochs[-1]["train_nats"] if epochs else None,
        kl_per_example=epochs[-1]["kl_per_example"] if epochs else None,
        valid_error=classify(model, subject.method.resting(), valid.x, valid.y).error,
        test_error=at_mean.error,
        test_nats=at_mean.nats,
        test_error_samples=None if sampled is None else sampled.error,
        test_nats_samples=None if sampled is None else sampled.nats,
    )


def comparison(rows: Sequence[Row]) -> Comparison:
    """The rows as a table."""
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
    return Comparison(headings, cells, [row.as_json() for row in rows])


def epochs_of(run: Run) -> list[dict[str, Any]]:
    """The metrics of each epoch, with the training time so far and, for a posterior, the free energy."""
    seconds = accumulate(line["seconds"] for line in run.read_timing())
    found = []
    for line, clock in zip(run.read_metrics("epoch"), seconds, strict=False):
        values = {**line, "seconds": clock}
        if line["kl_per_example"] is not None:
            nats = line["train_nats"], line["kl_per_example"], line["kl_theta_per_example"]
            values["free_energy"] = sum(nats)
        found.append(values)
    return found


def calibration_of(subject: Subject) -> list[CalibrationRow]:
    test, model = subject.digits.test, subject.method.model
    return [
        CalibrationRow(subject.name, count, classify(model, members, test.x, test.y).calibration())
        for count, members in subject.ways().items()
    ]


@dataclass(frozen=True)
class Rotation:
    """Predictions for rotated digits: means over the test examples, by angle in degrees."""

    model: str
    samples: int
    entropy: dict[int, float]
    mutual_information: dict[int, float]
    error: dict[int, float]


def rotations(subject: Subject, examples: int = 2000) -> list[Rotation]:
    """Predictions for the first test examples, rotated by 0 to 180 degrees."""
    test, model = subject.digits.test[:examples], subject.method.model
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


def pruned_errors(subject: Subject) -> dict[float, float] | None:
    """Test error with 0, 50, 75, 95 and 98% of the weights dropped; None for a run without a posterior."""
    test, method = subject.digits.test, subject.method
    if method.posterior is None:
        return None
    order = by_signal_to_noise(method.posterior)
    return curve(
        order, lambda: classify(method.model, method.resting(), test.x, test.y).error, DROPS
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
