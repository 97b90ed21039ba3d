"""A text word by word: probability, entropy and mutual information of each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bayesrnn import ranks
from bayesrnn.data.vocabulary import END, Vocabulary
from bayesrnn.methods import Method
from bayesrnn.tasks.language.evaluation.beliefs import beliefs, models_of

OUTSTANDING = 0.05
"""The share of a text's words that stand out."""


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


@dataclass(frozen=True)
class Outstanding:
    """The words of a text that stand out from the others, as positions, the most outstanding ones first."""

    unlikely: tuple[int, ...]
    """The least likely words."""
    uncertain: tuple[int, ...]
    """The words where mutual information is highest; none without weight samples."""


def outstanding(
    words: Sequence[ScoredWord], *, sampled: bool, share: float = OUTSTANDING
) -> Outstanding:
    """The words that stand out by rank: a share of the words, at least one of each kind; no line ends.

    By rank, since no fixed probability is low for every text and model.
    """
    places = [place for place, word in enumerate(words) if word.word != END]
    count = max(1, round(share * len(places)))

    def highest(value: Callable[[ScoredWord], float]) -> tuple[int, ...]:
        return tuple(sorted(places, key=lambda place: -value(words[place]))[:count])

    uncertain = highest(lambda word: word.mutual_information) if sampled else ()
    return Outstanding(highest(lambda word: word.surprise), uncertain)


def read_words(path: Path, tokenize: Callable[[str], list[str]]) -> list[list[str]]:
    """The words of each line of a file, or of standard input for "-"."""
    if str(path) != "-" and not path.is_file():
        raise ValueError(
            f"{path}: {'is a folder; name a file' if path.is_dir() else 'no such file'}."
        )
    standard_input = str(path) == "-"  # which all ranks share, and one can read
    raw = ranks.broadcast_bytes(sys.stdin.buffer.read) if standard_input else path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}).") from None
    return words_of(text, tokenize, str(path))


def words_of(text: str, tokenize: Callable[[str], list[str]], source: str) -> list[list[str]]:
    """The words of each line of a text; lines without any are left out."""
    lines = [line for line in map(tokenize, text.splitlines()) if line]
    if not lines:
        raise ValueError(f"{source} has no words.")
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
