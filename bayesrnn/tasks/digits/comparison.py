"""Runs on digits: the comparison table, and the measurements in their report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median
from typing import Any

import torch

from bayesrnn.evaluation.pruning import curve
from bayesrnn.evaluation.pruning_study import Prunable
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
TABLE_ANGLES = (0, 30, 60, 90, 180)
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
    valid_examples: int
    """Number of examples held out for validation, which may differ between runs."""
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
    """Each run with its data, or with `data`, whose images must have the same size.

    ValueError unless the test images are the same for all of them, so that their figures can be compared.
    """
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
    _check_same_images(found)
    return found


def _check_same_images(subjects: Sequence[Subject]) -> None:
    """Raise ValueError unless the test images of all runs are the same, whatever white is in them."""
    first, *others = subjects
    for other in others:
        own, theirs = first.digits.test, other.digits.test
        same = torch.equal(own.y, theirs.y) and own.x.shape == theirs.x.shape
        if not same or not torch.allclose(
            own.x / first.config.white, theirs.x / other.config.white
        ):
            sizes = [subject.config.pixels for subject in (first, other)]
            cure = "give --data to compare them on the same ones"
            raise ValueError(
                f"{first.name} and {other.name} have different test images ({first.config.data}, {sizes[0]} "
                f"pixels wide, and {other.config.data}, {sizes[1]}); "
                f"{cure if sizes[0] == sizes[1] else 'give one at a time'}."
            )


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
        valid_examples=len(valid),
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
    return Comparison(headings, cells, [row.as_json() for row in rows], _notes(rows))


def _notes(rows: Sequence[Row]) -> list[str]:
    if len({row.valid_examples for row in rows}) == 1:
        return []
    counts = ", ".join(f"{row.run} {row.valid_examples:,}" for row in rows)
    return [f"val error is of different examples ({counts}); compare the test error."]


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


@dataclass(frozen=True)
class Evaluation:
    """The error of one way of predicting."""

    way: str
    split: str
    examples: int
    error: float
    nats: float
    """Mean -log p of the true class."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(subject: Subject, split: str) -> list[Evaluation]:
    """The error on a split at the mean weights, and averaged over samples if the subject has any."""
    images, found = subject.digits.split(split), []
    for count, members in subject.ways().items():
        at = classify(subject.method.model, members, images.x, images.y)
        way = f"{count} samples" if count else "mean"
        found.append(Evaluation(way, split, len(images), at.error, at.nats))
    return found


def calibration_of(subject: Subject, split: str = "test") -> list[CalibrationRow]:
    images, model = subject.digits.split(split), subject.method.model
    found = {
        count: classify(model, members, images.x, images.y)
        for count, members in subject.ways().items()
    }
    return [CalibrationRow(subject.name, count, at.calibration()) for count, at in found.items()]


@dataclass(frozen=True)
class Rotation:
    """Predictions for rotated digits: means over the test examples, by angle in degrees."""

    model: str
    samples: int
    entropy: dict[int, float]
    mutual_information: dict[int, float]
    error: dict[int, float]

    def as_json(self) -> list[dict[str, Any]]:
        """One record for each angle."""
        return [
            {
                "model": self.model,
                "samples": self.samples,
                "angle": angle,
                "entropy": self.entropy[angle],
                "entropy_gap": self.entropy[angle] - self.entropy[0],
                "mutual_information": self.mutual_information[angle],
                "error": self.error[angle],
            }
            for angle in self.entropy
        ]


def rotations(subject: Subject, examples: int = 2000) -> list[Rotation]:
    """Predictions for the first test examples, rotated by 0 to 180 degrees."""
    return [
        _rotated(subject, count, members, examples) for count, members in subject.ways().items()
    ]


def all_rotations(
    subjects: Sequence[Subject],
    counts: Sequence[int],
    progress: Progress = lambda name: None,
    examples: int = 2000,
) -> list[Rotation]:
    """The same of several runs, without sampling and for each of these numbers of samples that they have."""
    found = []
    for subject in subjects:
        progress(subject.name)
        found.append(_rotated(subject, 0, subject.method.resting(), examples))
        for count in subject.method.available(counts):
            members = subject.method.members(count, subject.seed)
            found.append(_rotated(subject, count, members, examples))
    return found


def _rotated(subject: Subject, count: int, members: Sequence[Member], examples: int) -> Rotation:
    test, model = subject.digits.test[:examples], subject.method.model
    at = {a: classify(model, members, rotate(test.x, a), test.y) for a in ANGLES}
    return Rotation(
        subject.name,
        count,
        {a: c.entropy.mean().item() for a, c in at.items()},
        {a: c.mutual_information.mean().item() for a, c in at.items()},
        {a: c.error for a, c in at.items()},
    )


def rotation_table(found: Sequence[Rotation]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each angle, run and number of samples."""
    headings = ["rotation", "run", "samples", "entropy", "gap", "MI", "error"]
    cells = [
        [
            str(angle),
            each.model,
            str(each.samples) if each.samples else "none",
            f"{each.entropy[angle]:.3f}",
            f"{each.entropy[angle] - each.entropy[0]:+.3f}",
            f"{each.mutual_information[angle]:.4f}" if each.samples else "-",
            f"{each.error[angle]:.2%}",
        ]
        for angle in TABLE_ANGLES
        for each in found
    ]
    return headings, cells


def pruned_errors(subject: Subject) -> dict[float, float] | None:
    """Test error with 0, 50, 75, 95 and 98% of the weights dropped; None for a run without a posterior."""
    posterior = subject.method.posterior
    if posterior is None:
        return None
    return curve(by_signal_to_noise(posterior), prunable(subject, "test").measure, DROPS)


def prunable(subject: Subject, split: str) -> Prunable:
    """The run as a model to prune, measured by its error on a split."""
    images, method = subject.digits.split(split), subject.method
    return Prunable(
        subject.name,
        subject.run.folder,
        subject.config.method,
        method,
        method.weights(),
        lambda: classify(method.model, method.resting(), images.x, images.y).error,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
