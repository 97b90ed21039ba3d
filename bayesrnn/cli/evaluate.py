"""`bayesrnn evaluate`: the perplexity of a run, in all its ways of predicting."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's perplexity: at the mean, by Monte Carlo, sharpened, with dynamic evaluation."""

    run_folder: Positional[Path]
    """A folder written by `bayesrnn train`, or a file by `bayesrnn prune --export`."""
    split: Literal["train", "valid", "test"] = "test"
    """Part of the text: train, valid or test."""
    samples: int = 0
    """Also predict with an average over this many samples of the weights."""
    sharpened: bool = False
    """Also score with the sharpened posterior: an upper bound on perplexity."""
    dynamic: bool = False
    """Also measure each way of predicting with dynamic evaluation."""
    lr: float = 0.1
    """Learning rate of dynamic evaluation."""
    streams: int = 1
    """Number of stretches of text to score side by side; with 1 the state is carried from start to end."""
    seed: int = 0
    """Random seed."""
    data: str | None = None
    """Another text than the run's own, or where its text is now."""
    json: bool = False
    """Print JSON lines."""

    def run(self) -> None:
        from rich.progress import Progress

        from bayesrnn.tasks.language.evaluation.perplexity import (
            DYNAMIC_STEPS,
            make_scorer,
            perplexity,
        )
        from bayesrnn.tasks.language.trained import open_trained

        if self.streams < 1:
            raise ValueError(f"streams = {self.streams} must be at least 1.")
        if self.lr <= 0:
            raise ValueError(f"lr = {self.lr} must be above 0.")
        (model,) = open_trained(self.run_folder)
        method, config = model.method, model.config
        # Each way of predicting: its name, and what `perplexity` is told.
        resting = "mean" if len(method.resting()) == 1 else f"{len(method.resting())} kept samples"
        ways: list[tuple[str, dict]] = [(resting, {"streams": self.streams})]
        if self.samples != 0:
            ways.append(
                (f"{self.samples} samples", {"streams": self.streams, "samples": self.samples})
            )
        if self.sharpened:
            own = {"streams": config.batch_size, "steps": config.unroll, "sharpened": True}
            ways.append(("sharpened", own))
        for _, options in ways:  # complain before the work, not after
            make_scorer(
                method,
                samples=options.get("samples", 0),
                sharpened=options.get("sharpened", False),
                seed=self.seed,
            )
        if self.dynamic:
            # In the order of the text, whatever the streams above: nothing is learnt before it is scored.
            adapting = {"dynamic_lr": self.lr, "streams": 1, "steps": DYNAMIC_STEPS}
            ways += [(f"{name}, dynamic", {**options, **adapting}) for name, options in ways]
        tokens = model.tokens(self.split, self.data)
        words = len(tokens) - 1
        if not self.json:
            print(f"{self.run_folder}, {self.split}: {words:,} words")
        hidden = self.json or not sys.stdout.isatty()
        for name, options in ways:
            with Progress(transient=True, disable=hidden) as bar:
                task = bar.add_task(name, total=words)
                result = perplexity(
                    method,
                    tokens,
                    seed=self.seed,
                    clip=config.clip,
                    progress=lambda n, bar=bar, task=task: bar.advance(task, n),
                    **options,
                )
            if self.json:
                record = {"way": name, "split": self.split, "perplexity": result.value}
                record |= {
                    "words": result.words,
                    "nats": result.nats,
                    "upper_bound": result.is_bound,
                }
                print(json.dumps(record))
            else:
                sign = "<=" if result.is_bound else "  "
                note = "  (an upper bound: it has seen the words)" if result.is_bound else ""
                print(f"  {name:22} perplexity {sign} {result.value:8.2f}{note}")
