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
    """Number of words to write."""
    temperature: float = 1.0
    """Temperature: below 1 for likelier words, above 1 for more surprising ones."""
    top_k: int = 0
    """Draw from this many of the likeliest words only; 0 for all."""
    weights: Literal["mean", "sample"] = "mean"
    """Weights to write with: the mean, or one sample."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from bayesrnn.tasks.language.data.corpus import END
        from bayesrnn.tasks.language.data.sources import tokenizer
        from bayesrnn.tasks.language.evaluation.generation import generate
        from bayesrnn.tasks.language.trained import open_trained

        (model,) = open_trained(self.run_folder)
        prompt = tokenizer(model.config.data)(self.prompt)
        for word in prompt:
            if word not in model.vocabulary.index:
                print(
                    f"bayesrnn: {word!r} is not in the vocabulary; read as <unk>.", file=sys.stderr
                )
        written = generate(
            model.method,
            model.vocabulary,
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
