"""A text word by word: probability, entropy and mutual information of each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bayesrnn.data.vocabulary import END, Vocabulary
from bayesrnn.methods import Method
from bayesrnn.tasks.language.evaluation.beliefs import beliefs, models_of


@dataclass(frozen=True)
class ScoredWord:
    """A word and the model's prediction at its position, in nats."""

    word: str
    unknown: bool
    """Whether the word is not in the vocabulary and was scored as `<unk>`."""
    probability: float
    surprise: float
    """-log probability."""
    entropy: float
    mutual_information: float

    def as_json(self) -> dict:
        return asdict(self)


def read_words(path: Path, tokenize: Callable[[str], list[str]]) -> list[list[str]]:
    """The words of each line of a file, or of standard input for "-"."""
    if str(path) != "-" and not path.is_file():
        raise ValueError(f"{path}: no such file.")
    raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        lines = [tokenize(line) for line in raw.decode("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}).") from None
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(f"{path} has no words.")
    return lines


def score_words(
    method: Method, vocabulary: Vocabulary, lines: list[list[str]], *, samples: int, seed: int
) -> Iterator[ScoredWord]:
    """Score every word and line end of a text, in order."""
    words = [word for line in lines for word in [*line, END]]
    if all(word not in vocabulary.index for line in lines for word in line):
        raise ValueError("no word of the text is in the run's vocabulary; is it the same language?")
    tokens = torch.tensor([vocabulary.end, *vocabulary.encode(words)])
    position = 0
    models = models_of(method, samples, seed)
    for _, found in beliefs(models, tokens, len(vocabulary)):
        belief = found[len(models)]
        columns = (belief.log_prob, belief.entropy, belief.mutual_information)
        for log_prob, entropy, information in zip(
            *(c[:, 0].tolist() for c in columns), strict=True
        ):
            word = words[position]
            known = word in vocabulary.index
            yield ScoredWord(word, not known, math.exp(log_prob), -log_prob, entropy, information)
            position += 1
