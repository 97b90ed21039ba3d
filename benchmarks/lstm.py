"""nn.LSTM in bf16, forward and backward: torch's kernel against `kernels/lstm.py`, in turns, medians.

    python benchmarks/lstm.py [--units 200 400 512 650 1500] [--rounds 12]

Two layers, 20 streams, 35 time steps. OMP_NUM_THREADS sets the threads; nothing else should run. Needs a
processor for which torch has an LSTM in bf16.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from bayesrnn.kernels import lstm as own
from bayesrnn.kernels.precision import multiplying_in
from bayesrnn.report.table import markdown_table

STREAMS, STEPS = 20, 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, nargs="+", default=[200, 400, 512, 650, 1500])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if not own.torch_computes_bf16():
        raise SystemExit("torch has no LSTM in bf16 for this processor: nothing to compare.")
    rows = []
    for units in options.units:
        lstm, x = nn.LSTM(units, units, 2), torch.randn(STEPS, STREAMS, units, requires_grad=True)
        seconds: dict[str, list[float]] = {"torch": [], "own": []}
        for _ in range(2 + options.rounds):  # two to warm up
            for kernel, each in seconds.items():
                each.append(_seconds(lstm, x, 1 if kernel == "own" else units + 1))
        torchs, owns = (statistics.median(each[2:]) for each in seconds.values())
        rows.append([str(units), f"{1e3 * torchs:.1f}", f"{1e3 * owns:.1f}"])
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(markdown_table(["units", "torch, ms", "own, ms"], rows))


def _seconds(lstm: nn.LSTM, x: Tensor, wide: int) -> float:
    """The time of one forward and backward, with our kernel from `wide` units on."""
    before, own.WIDE = own.WIDE, wide
    lstm.zero_grad()
    x.grad = None
    start = time.perf_counter()
    with multiplying_in("bf16", x.device):
        output, _ = lstm(x)
    own.WIDE = before
    output.float().sum().backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
