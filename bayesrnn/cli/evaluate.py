"""`bayesrnn evaluate`: the perplexity or error of a run, for each way of predicting."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Rate, Samples, Seed, Share, Source, Streams, check_needs
from bayesrnn.cli.console import show, show_json
from bayesrnn.cli.kinds import DIGITS, LANGUAGE, check_unused, kind_of, refusal
from bayesrnn.cli.launch import OnRanks


@dataclass(frozen=True)
class Evaluate(OnRanks):
    """Measure a run's perplexity or error: at the mean, by Monte Carlo, sharpened, dynamic."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train` or `bayesrnn mnist`, a file written by `bayesrnn prune --export`, or
    pretrained."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    samples: Samples = 0
    """Number of weight samples to average over; 0 to skip."""
    sharpened: bool = False
    """Add the sharpened posterior's score, an upper bound on perplexity (language models only)."""
    centre: bool = False
    """With --sharpened, add its score, KL included, at the centre of the sharpened posterior: no bound."""
    dynamic: bool = False
    """Add dynamic evaluation to each way of predicting (language models only)."""
    lr: Rate = 0.1
    """Learning rate of dynamic evaluation."""
    rare_words: Share = 0.0
    """Larger learning rates in dynamic evaluation for the rows of rare words in embedding and softmax: --lr x
    (count of the commonest word in the training text / count of the word) to this power; 0 for one rate."""
    decay: Share = 0.0
    """Before each step of dynamic evaluation, go this share of the way back to the trained weights; 0 to keep
    all that was learnt."""
    streams: Streams = 1
    """Number of parallel streams to divide the text into; with 1 the state is carried through all of it."""
    seed: Seed = 0
    """Random seed."""
    data: Source | None = None
    """Data to evaluate on; by default the data the run was trained on."""
    json: bool = False
    """Print one line of JSON for each result."""

    def run(self) -> None:
        kind = kind_of(self.run_folder)
        if kind == LANGUAGE:
            self._evaluate_text()
        elif kind == DIGITS:
            self._evaluate_digits()
        else:
            takes = (LANGUAGE, DIGITS)
            raise refusal(self.run_folder, kind, takes, captions="captions evaluate RUN")

    def _evaluate_digits(self) -> None:
        from bayesrnn.tasks.digits.comparison import evaluate, subjects
        from bayesrnn.training.experiment import open_run

        check_unused(
            self,
            self.run_folder,
            DIGITS,
            *("sharpened", "centre", "dynamic", "lr", "rare_words", "decay", "streams"),
        )
        run = open_run(self.run_folder)
        (subject,) = subjects([run], data=self.data, samples=self.samples, seed=self.seed)
        if self.samples:
            subject.method.members(self.samples, self.seed)  # says why, if it cannot be sampled
        found = evaluate(subject, self.split)
        if self.json:
            for result in found:
                show_json(result.as_json())
            return
        show(f"{self.run_folder}, {self.split}: {found[0].examples:,} examples")
        for result in found:
            show(f"  {result.way:22} error {result.error:8.2%}   {result.nats:.4f} nats/example")

    def _evaluate_text(self) -> None:
        from rich.progress import Progress

        from bayesrnn.tasks.language.evaluation.perplexity import (
            DYNAMIC_STEPS,
            make_scorer,
            perplexity,
        )
        from bayesrnn.tasks.language.trained import open_trained

        for option in ("lr", "rare_words", "decay"):
            check_needs(self, option, "dynamic")
        check_needs(self, "centre", "sharpened")
        (model,) = open_trained(self.run_folder)
        method, config = model.method, model.config
        # Each way of predicting: its name, and the arguments for `perplexity`.
        default = "mean" if len(method.resting()) == 1 else f"{len(method.resting())} kept samples"
        ways: list[tuple[str, dict]] = [(default, {"streams": self.streams})]
        if self.samples != 0:
            ways.append(
                (f"{self.samples} samples", {"streams": self.streams, "samples": self.samples})
            )
        if self.sharpened:
            own = {"streams": config.batch_size, "steps": config.unroll, "sharpened": True}
            ways.append(("sharpened", own))
            if self.centre:
                ways.append(("sharpened, no noise", {**own, "noise": False}))
        for _, options in ways:  # reject what cannot be done before any work
            make_scorer(
                method,
                samples=options.get("samples", 0),
                sharpened=options.get("sharpened", False),
                seed=self.seed,
            )
        tokens = model.tokens(self.split, self.data)
        if self.dynamic:
            # One stream, whatever --streams says: no word may be learnt before it is scored.
            how = model.adaptation(
                lr=self.lr, rare_words=self.rare_words, decay=self.decay, data=self.data
            )
            adapting = {"dynamic": how, "streams": 1, "steps": DYNAMIC_STEPS}
            ways += [(f"{name}, dynamic", {**options, **adapting}) for name, options in ways]
        words = len(tokens) - 1
        if not self.json:
            show(f"{self.run_folder}, {self.split}: {words:,} words")
        hidden = self.json or not sys.stdout.isatty()
        for name, options in ways:
            with Progress(transient=True, disable=hidden) as bar:
                task = bar.add_task(name, total=words)
                result = perplexity(
                    method,
                    tokens,
                    seed=self.seed,
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
                show_json(record)
            else:
                sign = "<=" if result.is_bound else "  "
                note = ""
                if options.get("sharpened"):
                    kind = "an upper" if result.is_bound else "no"
                    note = f"  ({kind} bound: sharpened on these words)"
                show(f"  {name:28} perplexity {sign} {result.value:8.2f}{note}")
