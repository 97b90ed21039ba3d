"""The cost of evaluation, at the mean and by Monte Carlo, and of memory, relative to the plain LSTM.

    python benchmarks/evaluation.py [--hidden 650] [--samples 1 4 10]

The text is random words, in segments as in `bayesrnn evaluate`. Times are medians over rounds in which each
method scores the whole text once. Memory is the peak of the process beyond the model, in flat vectors of all
weights, measured in a separate process for each method.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from training_step import BATCH, UNROLL, VOCABULARY, contender

from bayesrnn.kernels import one_pass
from bayesrnn.methods import Method
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.evaluation.beliefs import models_of
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.evaluation.uncertainty import measure
from bayesrnn.tasks.language.task import build_method

STREAMS = 10


def evaluation_table(hidden: int, samples: list[int], words: int, rounds: int) -> str:
    size = "medium" if hidden > 400 else "small"
    plain = build_method(preset(size, "lstm", hidden=hidden), VOCABULARY)
    bayes = build_method(preset(size, "bbb", hidden=hidden), VOCABULARY)
    tokens = torch.randint(0, VOCABULARY, (words + 1,), dtype=torch.int32)

    def score(method: Method, count: int) -> Callable[[], object]:
        return lambda: perplexity(method, tokens, streams=STREAMS, samples=count)

    def doubt(method: Method, count: int) -> Callable[[], object]:
        return lambda: measure(models_of(method, count), tokens, VOCABULARY, streams=STREAMS)

    ways = {"plain LSTM": score(plain, 0), "bbb, mean": score(bayes, 0)}
    ways |= {f"bbb, {count} samples": score(bayes, count) for count in samples}
    ways["uncertainty of bbb, mean"] = doubt(bayes, 0)
    ways |= {f"uncertainty of bbb, {count} samples": doubt(bayes, count) for count in samples}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            if number:  # the first round compiles
                seconds[way].append(time.perf_counter() - start)
    rows = []
    for way, own in seconds.items():
        ratios = [o / b for o, b in zip(own, seconds["plain LSTM"], strict=True)]
        rows.append([way, f"{statistics.median(own):.2f}", f"{statistics.median(ratios):.2f}"])
    return markdown_table(
        [f"{hidden} units, {words:,} words", "seconds", "plain evaluations"], rows
    )


def _training_memory(method: str, hidden: int) -> tuple[int, int]:
    """Peak memory of training steps in bytes, and the number of weights."""
    torch.set_num_threads(1)
    one_pass.enabled = False  # the compiler itself takes about another 100 MiB
    each = contender(method, hidden)
    x, y = torch.randint(0, VOCABULARY, (2, UNROLL, BATCH))
    for _ in range(4):
        each.step(x, y)
    weights = sum(p.numel() for p in each.method.weights().values())
    # Only Linux reports a process's peak memory without that of its parent.
    status = Path("/proc/self/status").read_text()
    kibibytes = re.search(r"VmHWM:\s+(\d+)", status)
    assert kibibytes is not None
    return int(kibibytes[1]) * 1024, weights


def memory_table(hidden: int) -> str:
    most = {}
    for method in ("dropout", "bbb", "sharpened"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            most[method] = pool.apply(_training_memory, (method, hidden))
    rows = []
    for method, (size, weights) in most.items():
        extra = (size - most["dropout"][0]) / (4 * weights)
        rows.append([method, f"{size / 2**20:.0f}", f"{extra:.1f}"])
    return markdown_table(
        [f"{hidden} units, training", "MiB at most", "vectors beyond dropout"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=650, help="units of the LSTM")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 4, 10])
    parser.add_argument("--words", type=int, default=8192, help="length of the text")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(evaluation_table(options.hidden, options.samples, options.words, options.rounds), "\n")
    print(memory_table(options.hidden))


if __name__ == "__main__":
    main()
