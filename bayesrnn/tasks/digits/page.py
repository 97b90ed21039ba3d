"""The sections of the report on digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayesrnn.report import calibration
from bayesrnn.report.figures import learning_curves
from bayesrnn.report.html import picture, side_by_side, table
from bayesrnn.report.progress import Stages
from bayesrnn.report.summary import Summary, judge, summary
from bayesrnn.report.weights import weights_html
from bayesrnn.tasks.digits import figures
from bayesrnn.tasks.digits.comparison import (
    Row,
    Subject,
    calibration_of,
    compare,
    comparison,
    epochs_of,
    pruned_errors,
    rotations,
)
from bayesrnn.training.experiment import Progress, Section

TABLED = (0, 30, 60, 90, 120, 150, 180)
"""The angles in the table beside the figures of rotated digits."""


def sections(subjects: Sequence[Subject], progress: Progress) -> list[Section]:
    """Evaluate the runs and write the sections of the page."""
    bayesian = {s.name for s in subjects if s.method.posterior is not None}
    progress = Stages(progress, 3 * len(subjects) + 2 * len(bayesian))
    rows = compare(subjects, lambda name: progress(f"evaluating {name}"))
    found = comparison(rows)
    body: list[Section] = [
        _summary(rows, bayesian),
        Section(
            "comparison",
            "Comparison",
            "<p>Errors of the best epoch, without sampling (at a posterior&rsquo;s mean) and averaged "
            f"over weight samples (MC).</p>{table(found.headings, found.cells)}",
        ),
        _learning(subjects),
        _calibration(subjects, progress),
        _rotation(subjects, progress),
    ]
    if pruned := _pruning(subjects, progress):
        body.append(pruned)
    for index, subject in enumerate(subjects):
        if subject.method.posterior is not None:
            progress(f"{subject.name}: information in the weights")
            html = weights_html(subject.method.posterior, f"d{index}")
            body.append(Section(f"posterior-{index}", f"The posterior of {subject.name}", html))
    return body


def _summary(rows: Sequence[Row], bayesian: set[str]) -> Summary:
    """Which run is ahead; Bayesian runs are averaged over samples, where they can be."""
    error, nats = {}, {}
    for row in rows:
        sampled = row.run in bayesian and row.test_error_samples is not None
        error[row.run] = row.test_error_samples if sampled else row.test_error
        nats[row.run] = row.test_nats_samples if sampled else row.test_nats
    found = [
        judge(
            "Test error",
            "the share of the test images that are given the wrong class; lower is better",
            error,
            lambda value: f"{value:.2%}",
            bayesian=bayesian,
        ),
        judge(
            "Test loss",
            "-log p of the true class in nats, which punishes errors made with confidence; lower is better",
            nats,
            lambda value: f"{value:.4f}",
            bayesian=bayesian,
        ),
    ]
    findings = [finding for finding in found if finding is not None]
    return summary(findings, [row.run for row in rows], bayesian)


def _learning(subjects: Sequence[Subject]) -> Section:
    lines = {subject.name: epochs_of(subject.run) for subject in subjects}
    error = {"valid": "valid_error", "train": None, "label": "validation error (%)", "scale": 100.0}
    energy = {"valid": "free_energy", "train": None, "label": "free energy (nats/example)"}
    clock = {"x": "seconds", "x_label": "training time (s)"}
    pictures = [
        picture(learning_curves(lines, **error), "error", "Validation error by epoch"),
        picture(
            learning_curves(lines, **clock, **error),
            "error-time",
            "Validation error by seconds",
        ),
    ]
    bayesian = {name: values for name, values in lines.items() if values and _has_kl(values)}
    if bayesian:
        pictures += [
            picture(learning_curves(bayesian, **energy), "energy", "Free energy by epoch"),
            picture(
                learning_curves(bayesian, **clock, **energy),
                "energy-time",
                "Free energy by seconds",
            ),
        ]
    note = (
        "<p>The free energy is the training objective: nats per training example plus the KL, and with "
        "sharpening KL_theta, per example.</p>"
    )
    return Section("learning", "Learning curves", side_by_side(pictures, note if bayesian else ""))


def _has_kl(lines: list[dict[str, Any]]) -> bool:
    return "free_energy" in lines[-1]


def _calibration(subjects: Sequence[Subject], progress: Progress) -> Section:
    rows = []
    for subject in subjects:
        progress(f"{subject.name}, calibration")
        rows += calibration_of(subject)
    return calibration.section(rows, "class")


def _rotation(subjects: Sequence[Subject], progress: Progress) -> Section:
    found = []
    for subject in subjects:
        progress(f"{subject.name}, rotated digits")
        found += rotations(subject)
    named = {
        f"{r.model}, {f'{r.samples} samples' if r.samples else 'no sampling'}": r for r in found
    }
    entropy = {name: r.entropy for name, r in named.items()}
    error = {name: {a: 100 * e for a, e in r.error.items()} for name, r in named.items()}
    note = (
        "<p>Test digits rotated: the larger the angle, the less they look like the training data. A good "
        "model becomes less certain as its error grows.</p>"
    )
    pictures = [
        picture(figures.by_angle(entropy, "mean entropy (nats)"), "turned", "Entropy by angle"),
        picture(figures.by_angle(error, "error (%)"), "turned-error", "Error by angle"),
    ]
    disagreement = {name: r.mutual_information for name, r in named.items() if r.samples}
    if disagreement:
        drawn = figures.by_angle(disagreement, "mutual information (nats)")
        pictures.append(picture(drawn, "turned-mi", "Mutual information by angle"))
    cells = [
        [str(angle), *(f"{points[angle]:.3f}" for points in entropy.values())] for angle in TABLED
    ]
    beside = f"{note}<p>Mean entropy by angle, in nats:</p>{table(['degrees', *entropy], cells)}"
    return Section("rotation", "Rotated digits", side_by_side(pictures, beside))


def _pruning(subjects: Sequence[Subject], progress: Progress) -> Section | None:
    curves = {}
    for subject in subjects:
        if subject.method.posterior is not None:
            progress(f"{subject.name}, pruning")
            curves[subject.name] = pruned_errors(subject)
    if not curves:
        return None
    drops = next(iter(curves.values()))
    headings = ["weights", *curves]
    cells = [
        [f"{d:.0%} dropped", *(f"{errors[d]:.2%}" for errors in curves.values())] for d in drops
    ]
    figure = picture(figures.pruned_errors(curves), "pruned", "Test error by share dropped")
    note = "<p>Test error with weights set to zero in the order of |&mu;|/&sigma;.</p>"
    return Section("pruning", "Pruning", side_by_side([figure], note + table(headings, cells)))
