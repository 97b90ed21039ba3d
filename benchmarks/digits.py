"""The time of a training epoch on MNIST for each method: `python benchmarks/digits.py --data FOLDER`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.digits.config import DigitsConfig
from bayesrnn.tasks.digits.data import Digits, load_digits
from bayesrnn.tasks.digits.task import DigitsTask, build_method
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run

METHODS = ("sgd", "dropout", "bbb", "sharpened")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", help="folder of MNIST's IDX files, or digits")
    parser.add_argument("--epochs", type=int, default=7, help="timed, after one that warms up")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[DigitsConfig.batch_size])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    digits = load_digits(options.data, white=DigitsConfig.white)
    rows = []
    for batch_size in options.batch_size:
        seconds = _seconds(options.data, digits, options.epochs, batch_size)
        for method, times in seconds.items():
            ratio = median(times) / median(seconds["sgd"])
            rows.append([str(batch_size), method, f"{median(times):.2f}", f"{ratio:.2f}"])
    print(markdown_table(["batch", "method", "seconds an epoch", "of sgd"], rows))


def _seconds(data: str, digits: Digits, epochs: int, batch_size: int) -> dict[str, list[float]]:
    """The seconds of each epoch except the first, by method; methods take turns."""
    with tempfile.TemporaryDirectory() as folder:
        runs, goings = {}, {}
        for method in METHODS:
            config = DigitsConfig.for_method(method)
            config = replace(
                config,
                data=data,
                epochs=epochs + 1,
                batch_size=batch_size,
                pixels=digits.train.x.shape[-1],
            )
            runs[method] = Run.create(Path(folder) / method, config)
            trainer = Trainer(runs[method], DigitsTask(config, digits), build_method(config))
            goings[method] = _epoch_by_epoch(trainer)
        for _ in range(epochs + 1):
            for going in goings.values():
                next(going)
        return {
            method: [line["seconds"] for line in run.read_timing()][1:]
            for method, run in runs.items()
        }


def _epoch_by_epoch(trainer: Trainer) -> Iterator[None]:
    done = 0
    for progress in trainer.run():
        if progress.epoch > done:
            done = progress.epoch
            yield


if __name__ == "__main__":
    main()
