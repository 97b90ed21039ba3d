"""`bayesrnn score`: the probability and uncertainty of each word of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from bayesrnn.cli.arguments import Samples, Seed, check_input
from bayesrnn.cli.console import one_line, show_json


@dataclass(frozen=True)
class Score:
    """Show each word of a text with its probability, the model's entropy and mutual information."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train`, or a file written by `bayesrnn prune --export`."""
    file: Positional[Path]
    """Text file with words separated by white space; - for standard input."""
    samples: Samples | None = None
    """Number of weight samples to average over; 0 for the mean weights, without mutual information.
    By default 10 if the run can be sampled."""
    seed: Seed = 0
    """Random seed."""
    json: bool = False
    """Print one line of JSON for each word."""

    def run(self) -> None:
        from bayesrnn.tasks.language.data.sources import tokenizer
        from bayesrnn.tasks.language.evaluation.words import read_words, score_words
        from bayesrnn.tasks.language.trained import open_trained

        check_input(self.file)
        (model,) = open_trained(self.run_folder)
        lines = read_words(self.file, tokenizer(model.config.data))
        samples = self.samples
        if samples is None:
            samples = max(model.method.available([10]), default=0)
        scored = score_words(model.method, model.vocabulary, lines, samples=samples, seed=self.seed)
        if self.json:
            for word in scored:
                show_json(word.as_json())
            return
        _print_coloured(list(scored))


def _print_coloured(words) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    text = Text()
    for word in words:
        if word.word == "<eos>":
            text.append("\n")
            continue
        # Likely words plain, unlikely ones yellow or red; underlined where the samples disagree most.
        style = "red" if word.surprise > 8 else "yellow" if word.surprise > 5 else ""
        if word.mutual_information > 0.3:
            style += " underline"
        text.append(
            one_line(word.word) + ("*" if word.unknown else ""), style=style.strip() or None
        )
        text.append(" ")
    console.print(text)
    count = len(words)
    nats = sum(word.surprise for word in words) / count
    entropy = sum(word.entropy for word in words) / count
    information = sum(word.mutual_information for word in words) / count
    console.print(
        f"{count} words: perplexity {_exp(nats):.1f}, entropy {entropy:.2f} nats/word, "
        f"mutual information {information:.3f} nats/word"
    )
    console.print(
        "yellow: less likely than e^-5; red: than e^-8; underlined: mutual information over 0.3; "
        "*: not in the vocabulary"
    )


def _exp(nats: float) -> float:
    """e^nats, infinite where a float ends."""
    return math.exp(nats) if nats < 700 else math.inf
