"""How the cost of a step grows with the size of model, unroll, batch, vocabulary and samples.

    python benchmarks/growth.py [--out docs/images/growth.png]

Prints the slope of log seconds against log size for the plain LSTM and for bbb, and draws the curves. A
slope of 1 is proportional.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bayesrnn.memory import keep_memory
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.task import build_method

START = {"units": 200, "unroll": 35, "batch": 20, "vocabulary": 10_000}
SIZES = {
    "units": [100, 200, 400, 800],
    "unroll": [10, 20, 40, 80],
    "batch": [5, 10, 20, 40],
    "vocabulary": [2_500, 5_000, 10_000, 20_000],
}
SAMPLES = [1, 2, 4, 8]


def training_step(name: str, sizes: dict[str, int]) -> Callable[[], object]:
    method = build_method(preset("small", name, hidden=sizes["units"]), sizes["vocabulary"])
    optimizer = torch.optim.SGD(method.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, sizes["vocabulary"], (2, sizes["unroll"], sizes["batch"]))

    def step() -> None:
        optimizer.zero_grad()
        method.step(
            lambda: method.model.loss(x, y),  # type: ignore[operator]
            kl_weight=4e-5,
            generator=generator,
        )
        optimizer.step()

    return step


def evaluation(samples: int) -> Callable[[], object]:
    method = build_method(preset("small", "bbb", hidden=START["units"]), START["vocabulary"])
    tokens = torch.randint(0, START["vocabulary"], (4097,), dtype=torch.int32)
    return lambda: perplexity(method, tokens, streams=10, samples=samples)


def median_seconds(run: Callable[[], object], repetitions: int = 7) -> float:
    seconds = []
    for number in range(repetitions + 2):
        start = time.perf_counter()
        run()
        if number >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def slope(sizes: list[int], seconds: list[float]) -> float:
    """The slope of a straight line through the logarithms."""
    xs, ys = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    return statistics.linear_regression(xs, ys).slope


def measure() -> dict[str, dict[str, tuple[list[int], list[float]]]]:
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for what, sizes in SIZES.items():
        curves[what] = {
            method: (
                sizes,
                [median_seconds(training_step(method, {**START, what: size})) for size in sizes],
            )
            for method in ("lstm", "bbb")
        }
    curves["samples"] = {"bbb": (SAMPLES, [median_seconds(evaluation(s), 3) for s in SAMPLES])}
    return curves


def draw(curves: dict[str, dict[str, tuple[list[int], list[float]]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(3 * len(curves), 3), sharey=False)
    styles = {
        "lstm": {"ls": "--", "marker": "o", "color": "0.45"},
        "bbb": {"marker": "s", "color": "k"},
    }
    for axis, (what, methods) in zip(axes, curves.items(), strict=True):
        for method, (sizes, seconds) in methods.items():
            axis.loglog(sizes, [1e3 * s for s in seconds], label=method, **styles[method])
        axis.set_xlabel(
            {
                "units": "LSTM units",
                "unroll": "unroll (words)",
                "batch": "batch (streams)",
                "vocabulary": "vocabulary (words)",
                "samples": "Monte Carlo samples",
            }[what]
        )
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        low, high = axis.get_ylim()
        steps = [n * 10**power for power in range(5) for n in (1, 2, 5)]
        ticks = [step for step in steps if low <= step <= high]
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms a training step")
    axes[-1].set_ylabel("ms an evaluation")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where to draw the curves")
    options = parser.parse_args()
    keep_memory()
    curves = measure()
    rows = [
        [what, method, " ".join(f"{1e3 * s:.0f}" for s in seconds), f"{slope(sizes, seconds):.2f}"]
        for what, methods in curves.items()
        for method, (sizes, seconds) in methods.items()
    ]
    print(markdown_table(["grows", "method", "ms", "slope"], rows))
    if options.out:
        draw(curves, options.out)
        print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
