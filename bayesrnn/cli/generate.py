"""`bayesrnn generate`: generate text with a run's model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Between, Seed, Temperature
from bayesrnn.cli.console import note, one_line, show, show_json
from bayesrnn.cli.kinds import LANGUAGE, kind_of, refusal
from bayesrnn.cli.launch import OnDevice


@dataclass(frozen=True)
class Generate(OnDevice):
    """Generate text with a run's model."""

    STRAY: ClassVar = "give the text to continue with --prompt"

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train`, a file written by `bayesrnn prune --export`, or pretrained."""
    prompt: str = ""
    """Text to continue."""
    words: Annotated[int, Between(1, 10**6)] = 60
    """Number of words to generate."""
    temperature: Temperature = 1.0
    """Sampling temperature; below 1 favours likely words, above 1 flattens the distribution."""
    top_k: Annotated[int, Between(0, 10**9)] = 0
    """Sample among the k likeliest words only; 0 for all words."""
    weights: Literal["mean", "sample"] = "mean"
    """Weights to generate with: the posterior mean, or one sample."""
    seed: Seed = 0
    """Random seed."""
    json: bool = False
    """Print the prompt and the generated words as JSON."""

    def run(self) -> None:
        from bayesrnn.tasks.language.data.sources import tokenizer
        from bayesrnn.tasks.language.evaluation.generation import generate
        from bayesrnn.tasks.language.trained import open_trained

        if (kind := kind_of(self.run_folder)) != LANGUAGE:
            instead = "captions describe RUN PHOTO"
            raise refusal(self.run_folder, kind, (LANGUAGE,), captions=instead)
        (model,) = open_trained(self.run_folder)
        prompt = tokenizer(model.config.data)(self.prompt)
        for word in prompt:
            if word not in model.vocabulary.index:
                note(f"bayesrnn: {word!r} is not in the vocabulary; read as <unk>.")
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
            show_json({"prompt": prompt, "words": list(written)})
        else:
            _show_words(chain(prompt, written))


def _show_words(words: Iterable[str]) -> None:
    """Print words as they come, each sentence on its line."""
    from bayesrnn.data.vocabulary import END

    before = ""
    for word in words:
        if word == END:
            before = "\n" if before else ""
            continue
        show(before + one_line(word), end="")
        before = " "
    show()
