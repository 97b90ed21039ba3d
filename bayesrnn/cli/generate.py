"""`bayesrnn generate`: text from a run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Generate:
    """Write text with a run's model."""

    run_folder: Positional[Path]
    """A folder written by `bayesrnn train`, or a file by `bayesrnn prune --export`."""
    prompt: str = ""
    """Words to begin with."""
    words: int = 60
    """How many words to write."""
    temperature: float = 1.0
    """Below 1 more likely words, above 1 more surprising ones."""
    top_k: int = 0
    """Draw from the k likeliest words only; 0 for all."""
    weights: Literal["mean", "sample"] = "mean"
    """The mean weights, or one sample of them."""
    seed: int = 0
    """Of the words, and of the sampled weights."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from bayesrnn.data.corpus import END
        from bayesrnn.data.sources import tokenizer
        from bayesrnn.evaluation.generation import generate
        from bayesrnn.training.exported import open_trained

        run = open_trained(self.run_folder)
        prompt = tokenizer(run.config.data)(self.prompt)
        for word in prompt:
            if word not in run.vocabulary.index:
                print(
                    f"bayesrnn: {word!r} is not in the vocabulary; read as <unk>.", file=sys.stderr
                )
        written = generate(
            run.load_learner(),
            run.vocabulary,
            prompt,
            words=self.words,
            temperature=self.temperature,
            top_k=self.top_k,
            sample_weights=self.weights == "sample",
            seed=self.seed,
        )
        if self.json:
            print(json.dumps({"prompt": prompt, "words": written}))
        else:
            print(" ".join([*prompt, *written]).replace(f" {END} ", "\n").removesuffix(f" {END}"))
