"""What a long text costs: the time to tokenise it, and the memory to tokenise and to train on it.

    python benchmarks/corpus.py [--words 1_000_000 100_000_000] [--types 1_000_000] [--steps 200]

Makes texts of random words (10,000 of them, Zipf's law) in a temporary folder, and tokenises and trains on
each in processes of their own, whose peak of resident memory (VmHWM) the system tells. A training reads every
chunk of the whole text once, in order, and takes a step of the preset tiny on some of them, equally many for
each text and equally far apart: an epoch of which most chunks are read but not learnt. Everything else is as
`bayesrnn train` has it, validation included. "Pages kept" is a training that keeps what it has read, as the
package once did. Of the text with as many different words as `--types` only the tokenising is measured: the
table of words is what grows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bayesrnn.report.table import markdown_table

TYPES = 10_000
LINE = 20
"""Words in a line, without its end."""
HELD_OUT = 20_000
"""Words of the validation and test text, whatever the length of the training text."""
LINES_AT_ONCE = 50_000


def write_text(folder: Path, words: int, types: int = TYPES) -> Path:
    """A folder of text with so many words to train on, ends of lines included."""
    folder.mkdir()
    for number, (split, count) in enumerate(
        {"train": words, "valid": HELD_OUT, "test": HELD_OUT}.items()
    ):
        with (folder / f"{split}.txt").open("w") as file:
            for lines in _lines(count // (LINE + 1), types, np.random.default_rng(number)):
                file.writelines(" ".join(line) + "\n" for line in lines)
    return folder


def _lines(count: int, types: int, random: np.random.Generator) -> Iterator[list[list[str]]]:
    names = np.array([f"w{rank}" for rank in range(types)], dtype=object)
    cumulative = np.cumsum(1 / np.arange(1, types + 1))
    for begin in range(0, count, LINES_AT_ONCE):
        size = min(LINES_AT_ONCE, count - begin), LINE
        if types > TYPES:  # each word as often as any other, so that all of them occur
            ranks = np.arange(begin * LINE, begin * LINE + size[0] * LINE) % types
        else:
            ranks = np.searchsorted(cumulative, random.random(size) * cumulative[-1])
        yield names[ranks].reshape(size).tolist()


def tokenise(text: Path) -> dict[str, float]:
    """In this process: the seconds that a first load takes."""
    from bayesrnn.data.download import cache_folder
    from bayesrnn.tasks.language.data.corpus import load_corpus
    from bayesrnn.tasks.language.data.text import text_files

    before, start = _resident("VmHWM"), time.perf_counter()
    corpus = load_corpus(text_files(text), None, cache_folder())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "words": len(corpus.train) - 1, "before": before}


def train(text: Path, steps: int, *, keep: bool) -> dict[str, float]:
    """In this process: read all of a text that has been tokenised, and learn from some of it."""
    import torch

    from bayesrnn.data import mapped
    from bayesrnn.tasks.language.config import preset
    from bayesrnn.tasks.language.experiment import EXPERIMENT
    from bayesrnn.tasks.language.task import LanguageTask
    from bayesrnn.training.experiment import Part

    if keep:
        mapped.KEPT = 1 << 60
    ready = EXPERIMENT.prepare(preset("tiny", "bbb", data=str(text)), None)
    task, method = ready.task, ready.method
    assert isinstance(task, LanguageTask)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    learnt = {number * len(task) // steps for number in range(min(steps, len(task)))}
    words = 0
    for index in range(len(task)):
        if index in learnt:
            optimizer.zero_grad()
            words += task.step(method, index, Part(), generator).items
            optimizer.step()
        else:
            x, y = task.cuts[index]
            assert int(x.max()) < TYPES + 2 > int(y.max())  # looks at every word
            words += x.numel()
    task.validate(method)
    return {"words": words, "files": _resident("RssFile")}


def _resident(name: str) -> float:
    """Megabytes that the system says of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def in_process(cache: Path, what: str, text: Path, steps: int) -> dict[str, float]:
    """Do one thing in a new process; returns what it measured and its peak of memory."""
    arguments = [sys.executable, __file__, "--inside", what, str(text), "--steps", str(steps)]
    env = {**os.environ, "BAYESRNN_CACHE": str(cache)}
    found = subprocess.run(arguments, check=True, env=env, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--words", type=int, nargs=2, default=[1_000_000, 100_000_000])
    parser.add_argument("--types", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        what, text = options.inside
        measured = (
            tokenise(Path(text))
            if what == "tokenise"
            else train(Path(text), options.steps, keep=what == "keep")
        )
        print(json.dumps({**measured, "peak": _resident("VmHWM")}))
        return
    rows, peaks = [], []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for words in options.words:
            text = write_text(Path(folder) / f"text-{words}", words)
            made = in_process(cache, "tokenise", text, 0)
            if not rows:  # the first training may have to compile, which takes memory too
                in_process(cache, "train", text, options.steps)
            ways = ["train", "keep"] if words == max(options.words) else ["train"]
            trained = {way: in_process(cache, way, text, options.steps) for way in ways}
            peaks.append(trained["train"]["peak"])
            kept = f"{trained['keep']['peak']:.0f}" if "keep" in trained else ""
            rows.append([*_tokenised(made, TYPES), f"{peaks[-1]:.0f}", kept])
        text = write_text(Path(folder) / "types", 5 * options.types, options.types)
        made = in_process(cache, "tokenise", text, 0)
        rows.append([*_tokenised(made, options.types), "", ""])
    columns = ["words", "types", "tokenised, s", "words/s", "tokenising, MB", "training, MB"]
    print(markdown_table([*columns, "pages kept, MB"], rows))
    print(f"training on the longer text: {peaks[1] - peaks[0]:+.0f} MB")


def _tokenised(made: dict[str, float], types: int) -> list[str]:
    words, seconds = made["words"], made["seconds"]
    cells = f"{words:,.0f}", f"{types:,}", f"{seconds:.1f}", f"{words / seconds:,.0f}"
    return [*cells, f"{made['peak']:.0f}"]


if __name__ == "__main__":
    main()
