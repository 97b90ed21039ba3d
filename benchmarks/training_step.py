"""The cost of a training step: Bayes by Backprop and sharpening, relative to the dropout LSTM.

    python benchmarks/training_step.py [--hidden 650 200] [--steps 15]

Every round takes one step of each method, so that other load on the machine affects all of them; the
numbers are medians over rounds. Nothing else should run at the same time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

import bayesrnn
from bayesrnn.gradients import total_norm
from bayesrnn.kernels.precision import multiplying_in
from bayesrnn.memory import keep_memory
from bayesrnn.methods import Method
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.task import build_method

BATCH, UNROLL, VOCABULARY = 20, 35, 10_000
METHODS = ("dropout", "bbb", "bbb sampled", "sharpened", "dropout bf16", "bbb bf16")


@dataclass
class Contender:
    """A method in training, as in `bayesrnn train`."""

    method: Method
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    precision: str

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.method.step(lambda: self.loss(x, y), kl_weight=4e-5, generator=self.generator)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = total_norm(parameters).item()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, 5.0 / norm)
        self.optimizer.step()
        return time.perf_counter() - start

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with multiplying_in(self.precision, x.device):
            return self.method.model.loss(x, y)[0]  # type: ignore[operator]


def contender(way: str, hidden: int) -> Contender:
    size = "medium" if hidden > 400 else "small"
    name, _, variant = way.partition(" ")
    changes = {"kl_gradient": "sampled"} if variant == "sampled" else {}
    method = build_method(preset(size, name, hidden=hidden, **changes), VOCABULARY)
    method.model.train()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, fused=True)
    precision = "bf16" if variant == "bf16" else "float32"
    return Contender(method, optimizer, torch.Generator().manual_seed(0), precision)


def peak(size: int = 2048, repetitions: int = 7) -> float:
    """Floating-point operations per second of one large matrix product."""
    a, b, out = (torch.rand(size, size) for _ in range(3))
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def operations(hidden: int) -> int:
    """Floating-point operations of a step's matrix products: forward, and twice that backward."""
    weights = 2 * 4 * hidden * 2 * hidden + hidden * VOCABULARY
    return 3 * 2 * weights * BATCH * UNROLL


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[650, 200], help="units of the LSTM"
    )
    parser.add_argument("--steps", type=int, default=15, help="rounds measured")
    options = parser.parse_args()
    print(
        f"bayesrnn {bayesrnn.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads\n"
    )
    keep_memory()
    fastest = peak()
    rows = []
    for hidden in options.hidden:
        contenders = {method: contender(method, hidden) for method in METHODS}
        x, y = torch.randint(0, VOCABULARY, (2, UNROLL, BATCH))
        for each in (
            contenders.values()
        ):  # warm up: compile, and allocate the memory that later steps reuse
            for _ in range(3):
                each.step(x, y)
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        for _ in range(options.steps):
            for method, each in contenders.items():
                seconds[method].append(each.step(x, y))
        base = seconds["dropout"]
        for method, own in seconds.items():
            median = statistics.median(own)
            ratio = statistics.median(b / o for b, o in zip(base, own, strict=True))
            passes = 2 if method == "sharpened" else 1
            share = passes * operations(hidden) / median / fastest
            rows.append(
                [str(hidden), method, f"{1e3 * median:.0f}", f"{ratio:.2f}x", f"{100 * share:.0f}%"]
            )
    print(markdown_table(["units", "method", "ms a step", "speed", "of matrix peak"], rows))
    print(f"\nmatrix peak: {fastest / 1e9:.0f} GFLOP/s in float32")


if __name__ == "__main__":
    main()
