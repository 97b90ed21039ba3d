"""The digits experiment, `bayesrnn mnist`. Torch is imported only inside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.tasks.digits.config import DigitsConfig
from bayesrnn.training.experiment import (
    CompareOptions,
    Comparison,
    Prepared,
    Progress,
    ReportOptions,
    Section,
    kl_text,
)

if TYPE_CHECKING:
    from bayesrnn.training.run import Run


class DigitsExperiment:
    """Train a classifier of handwritten digits, or resume its training."""

    name = "mnist"
    command = "mnist"
    summary = "Train a classifier of handwritten digits, or resume its training."
    run_name = "runs/DATA-NETWORK-METHOD-SEED"
    config = DigitsConfig

    def defaults(self, given: Mapping[str, str]) -> DigitsConfig:
        return DigitsConfig.for_method(given.get("method", "bbb"))

    def folder_name(self, config: DigitsConfig) -> str:
        return f"{Path(config.data).resolve().name}-{config.network}-{config.method}-{config.seed}"

    def prepare(self, config: DigitsConfig, before: Run | None) -> Prepared:
        from bayesrnn.storage import digest
        from bayesrnn.tasks.digits.data import load_digits
        from bayesrnn.tasks.digits.task import DigitsTask, build_method
        from bayesrnn.training.start import take_over

        digits = load_digits(config.data, config.valid, white=config.white)
        pixels = digits.train.x.shape[-1]
        if config.pixels not in (0, pixels):
            raise ValueError(
                f"pixels = {config.pixels}, but the images of {config.data} are {pixels}x{pixels}."
            )
        config = replace(config, pixels=pixels)
        data = digest({"x": digits.train.x, "y": digits.train.y}, {})
        summary = f"{config.data}: {len(digits.train):,} images of {pixels}x{pixels} pixels"
        method = build_method(config)

        def take_weights(run: Run) -> None:
            take_over(method, run.load_weights(build_method(run.config)))  # pyright: ignore[reportArgumentType]

        return Prepared(
            config,
            DigitsTask(config, digits),
            method,
            data=data,
            take_over=take_weights,
            summary=summary,
        )

    def progress_text(self, metrics: dict[str, Any]) -> str:
        return f"{metrics['train_nats']:.4f} nats"

    def epoch_line(self, metrics: dict[str, Any]) -> str:
        line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}"
        line += f"  train {metrics['train_nats']:.4f} nats"
        line += f"  valid {metrics['valid_nats']:.4f} nats, error {metrics['valid_error']:.2%}"
        return line + kl_text(metrics, "example")

    def goal_text(self, best: float) -> str:
        return f"validation error {best:.2%}"

    def compare(
        self, runs: Sequence[Run], options: CompareOptions, progress: Progress
    ) -> Comparison:
        from bayesrnn.tasks.digits.comparison import compare, comparison, subjects

        examined = subjects(runs, data=options.data, samples=options.samples)
        return comparison(compare(examined, progress))

    def report(
        self, runs: Sequence[Run], options: ReportOptions, progress: Progress
    ) -> list[Section]:
        from bayesrnn.tasks.digits.comparison import subjects
        from bayesrnn.tasks.digits.page import sections

        how = {"data": options.data, "samples": options.samples, "seed": options.seed}
        return sections(subjects(runs, **how), progress)


EXPERIMENT = DigitsExperiment()
