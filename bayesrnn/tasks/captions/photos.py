"""Captions for photos from anywhere, word by word, with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bayesrnn.data.vocabulary import END
from bayesrnn.report.table import text_table
from bayesrnn.tasks.captions.data.images import decode, read_file
from bayesrnn.tasks.captions.quality import Described, alternatives, describe
from bayesrnn.tasks.captions.trained import TrainedCaptioner


@dataclass(frozen=True)
class Word:
    """A word of a caption, and the prediction at its place, in nats."""

    word: str
    probability: float
    entropy: float
    mutual_information: float
    """What the weight samples disagree about; 0 without samples."""


@dataclass(frozen=True)
class DescribedPhoto:
    """A photo's caption and its uncertainty."""

    photo: str
    caption: str
    confidence: float
    """The geometric mean of the words' probabilities, from 0 to 1."""
    words: tuple[Word, ...]
    """The caption's words, and its end if it has one."""
    samples: int
    others: Mapping[str, int]
    """What each weight sample says on its own, and how many of them say it."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """As the command prints it."""
        rows = [
            [
                "(end)" if word.word == END else word.word,
                f"{word.probability:.1%}",
                f"{word.entropy:.2f}",
                *([f"{word.mutual_information:.3f}"] if self.samples else []),
            ]
            for word in self.words
        ]
        headings = ["word", "probability", "entropy (nats)"]
        table = text_table(headings + (["mutual information (nats)"] if self.samples else []), rows)
        lines = [f"{self.photo}: {self.caption or '(no words)'}"]
        lines.append(f"  confidence {self.confidence:.0%}, the geometric mean of the probabilities")
        lines += [f"  {line}" for line in table.splitlines()]
        if self.others:
            lines.append(f"  each of {self.samples} weight samples alone:")
            lines += [f"  {count:5d} x  {said}" for said, count in self.others.items()]
        return "\n".join(lines)


def describe_photos(
    model: TrainedCaptioner, paths: Sequence[Path], *, samples: int, beam: int, seed: int = 0
) -> tuple[list[DescribedPhoto], dict[str, str]]:
    """The captions of photos; also those that cannot be read, with the reason."""
    names, rows, skipped = [], [], {}
    for path in paths:
        try:
            rows.append(model.encoder([decode(read_file(path))]))
            names.append(str(path))
        except ValueError as error:
            skipped[str(path)] = str(error)
    if not names:
        return [], skipped
    count = max(model.method.available([samples]) if samples else [], default=0)
    features = torch.cat(rows)
    described = describe(model, features, samples=count, beam=beam, seed=seed)
    others = alternatives(model, features, count, beam=beam, seed=seed) if count else None
    return [
        _photo(model, name, described, row, count, others[row] if others else {})
        for row, name in enumerate(names)
    ], skipped


def caption_words(model: TrainedCaptioner, described: Described, row: int) -> tuple[Word, ...]:
    """The words of one of the captions, with their uncertainty."""
    lengths = described.beliefs.lengths
    start = int(lengths[:row].sum())
    caption, beliefs = described.captions[row], described.beliefs.words
    tokens = [*caption.tokens, model.vocabulary.end] if caption.ended else caption.tokens
    return tuple(
        Word(
            model.vocabulary.words[token],
            beliefs.log_prob[place].exp().item(),
            beliefs.entropy[place].item(),
            beliefs.mutual_information[place].item(),
        )
        for place, token in enumerate(tokens, start)
    )


def _photo(
    model: TrainedCaptioner,
    name: str,
    described: Described,
    row: int,
    samples: int,
    others: Mapping[str, int],
) -> DescribedPhoto:
    return DescribedPhoto(
        photo=name,
        caption=described.captions[row].text(model.vocabulary),
        confidence=described.confidence[row].item(),
        words=caption_words(model, described, row),
        samples=samples,
        others=others,
    )
