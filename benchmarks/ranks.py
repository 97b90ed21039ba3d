"""Two ranks of one thread each against one process of one thread: words per second in training.

The model of a preset on text of random words; all in one run, taking turns, medians. The first rank is also
the one process, while the others wait. By default there is a rank for each core. "Apart" is what as many
processes reach that share nothing but the machine, compared with one of them alone: the limit.

    python benchmarks/ranks.py
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.multiprocessing
from torch import distributed

from bayesrnn import ranks
from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.memory import keep_memory
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.data.corpus import Corpus
from bayesrnn.tasks.language.task import LanguageTask, build_method
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--method", default="bbb")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--words", type=int, default=10_000, help="words of the vocabulary")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[10, 20, 40], help="for each rank"
    )
    parser.add_argument("--ranks", type=int, default=os.cpu_count())
    parser.add_argument("--network", action="store_true", help="share no memory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, options), nprocs=options.ranks)


def _rank(rank: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    keep_memory()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["LOCAL_WORLD_SIZE"] = str(0 if options.network else options.ranks)
    world, rows = options.ranks, []
    with ranks.joined(3600):
        for streams in options.streams:
            together = _trainer(options, streams * world)
            alone = {n: _alone_trainer(options, n) for n in (streams, streams * world)}
            times: dict[str, list[float]] = {"sum": [], "together": [], "apart": []}
            times |= {f"alone {n}": [] for n in alone}
            for turn in range(options.rounds + 1):
                found = {"together": _seconds(together, options.steps)}
                grads = together.update.gradients()
                ranks.gather(
                    torch.zeros(1)
                )  # so that the last to come is not counted as the network
                clock = time.perf_counter()
                ranks.sum_(*grads)
                found["sum"] = time.perf_counter() - clock
                with _alone():  # all at once, without a word to each other: what the machine can do
                    found["apart"] = _seconds(alone[streams], options.steps)
                ranks.gather(torch.zeros(1))
                for count, trainer in alone.items():
                    if rank == 0:
                        with _alone():
                            found[f"alone {count}"] = _seconds(trainer, options.steps)
                    ranks.gather(torch.zeros(1))  # the others wait here
                if turn:  # the first compiles
                    for name, seconds in found.items():
                        times[name].append(seconds)
            if rank == 0:
                rows.append(_row(options, streams, times, together))
    if rank == 0:
        headings = ["streams for each rank", "step, ms", "of it gradients, ms", "MB sent"]
        headings += [f"{world} ranks, words/s", "one, same for each", "one, same in all"]
        headings += [f"{world} apart"]
        print(markdown_table(headings, rows))


def _row(
    options: argparse.Namespace, streams: int, times: dict[str, list[float]], trainer: Trainer
) -> list[str]:
    world = options.ranks
    median = {name: statistics.median(seconds) for name, seconds in times.items() if seconds}
    words = streams * trainer.task.cuts.unroll * options.steps  # type: ignore[attr-defined]
    together = words * world / median["together"]
    same_each = words / median[f"alone {streams}"]
    same_all = words * world / median[f"alone {streams * world}"]
    sent = (
        sum(p.numel() * p.element_size() for p in trainer.update.parameters)
        * 2
        * (world - 1)
        / world
    )
    return [
        str(streams),
        f"{1000 * median['together'] / options.steps:.0f}",
        f"{1000 * median['sum']:.0f}",
        f"{sent / 1e6:.0f}",
        f"{together:,.0f}",
        f"{same_each:,.0f} ({together / same_each:.2f}x)",
        f"{same_all:,.0f} ({together / same_all:.2f}x)",
        f"{words * world / median['apart']:,.0f} ({words * world / median['apart'] / same_each:.2f}x)",
    ]


def _trainer(options: argparse.Namespace, streams: int) -> Trainer:
    config = preset(options.preset, options.method, batch_size=streams, precision=options.precision)
    names = [f"w{n}" for n in range(options.words - 2)]
    vocabulary = Vocabulary((UNKNOWN, END, *names))
    size = 3 * (options.rounds + 1) * options.steps * config.unroll * streams + streams + 1
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(vocabulary), (size,), generator=generator)
    corpus = Corpus("random", vocabulary, tokens, tokens[:100], tokens[:100])
    method = build_method(config, len(vocabulary))
    return Trainer(Run(Path("unused"), config), LanguageTask(config, corpus), method)


def _alone_trainer(options: argparse.Namespace, streams: int) -> Trainer:
    with _alone():
        return _trainer(options, streams)


def _seconds(trainer: Trainer, steps: int) -> float:
    clock = time.perf_counter()
    for _ in range(steps):
        trainer._step()
    return time.perf_counter() - clock


@contextmanager
def _alone() -> Iterator[None]:
    """Inside the block this rank is the only process."""
    from bayesrnn.weights import processes

    group, ranks._group = ranks._group, None
    try:
        with processes.unwrapped():
            yield
    finally:
        ranks._group = group


if __name__ == "__main__":
    assert distributed.is_available()
    main()
