"""`bayesrnn generate`: generate text with a run's model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Generate:
    """Generate text with a run's model."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train`, or a file written by `bayesrnn prune --export`."""
    prompt: str = ""
    """Text to continue."""
    words: int = 60
    """Number of words to generate."""
    temperature: float = 1.0
    """Sampling temperature; below 1 favours likely words, above 1 flattens the distribution."""
    top_k: int = 0
    """Sample among the k likeliest words only; 0 for all words."""
    weights: Literal["mean", "sample"] = "mean"
    """Weights to generate with: the posterior mean, or one sample."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print the prompt and the generated words as JSON."""

    def run(self) -> None:
        from bayesrnn.data.vocabulary import END
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
