"""Captions as tokens, with the features of their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.tasks.captions.data.captioned import Captioned
from bayesrnn.tasks.captions.data.tokens import ptb_tokens
from bayesrnn.tasks.captions.model import PADDING

Batch = tuple[Tensor, Tensor, Tensor]
"""Features (N, F), x (T, N) and y (T, N): see `Captioner.word_logits`."""


@dataclass(frozen=True)
class Encoded:
    """Captions as tokens: each ends with the end-of-sentence token and is padded to the longest."""

    features: Tensor  # (images, F)
    image: Tensor  # (captions,), the row of each caption's image
    y: Tensor  # (captions, longest)
    end: int

    def __len__(self) -> int:
        return len(self.y)

    @property
    def lengths(self) -> Tensor:
        """Words of each caption, the end included."""
        return (self.y != PADDING).sum(1)

    @property
    def words(self) -> int:
        return int(self.lengths.sum())

    def batch(self, image: Tensor, y: Tensor) -> Batch:
        """The inputs of the model for some captions, no longer than the longest of them."""
        longest = int((y != PADDING).sum(1).max())
        y = y[:, :longest].T.long()
        first = torch.full((1, y.shape[1]), self.end)
        x = torch.cat([first, y[:-1]])
        return self.features[image], x.masked_fill(x == PADDING, self.end), y


def encode(split: Sequence[Captioned], features: Tensor, vocabulary: Vocabulary) -> Encoded:
    """The captions of a split, whose images have the features (images, F), in order."""
    # A caption that contains the mark of the end itself does not end there.
    words = (ptb_tokens(caption) for entry in split for caption in entry.captions)
    lines = [vocabulary.encode(UNKNOWN if w == END else w for w in line) for line in words]
    image = [row for row, entry in enumerate(split) for _ in entry.captions]
    return encode_tokens(lines, torch.tensor(image), features, vocabulary.end)


def encode_tokens(
    lines: Sequence[Sequence[int]],
    image: Tensor,
    features: Tensor,
    end: int,
    ended: Sequence[bool] | None = None,
) -> Encoded:
    """Captions given as tokens, without their end, which is added; not where `ended` is false."""
    y = torch.full((len(lines), 1 + max(map(len, lines))), PADDING, dtype=torch.int32)
    for row, tokens in enumerate(lines):
        whole = [*tokens, end] if ended is None or ended[row] else tokens
        y[row, : len(whole)] = torch.tensor(whole, dtype=torch.int32)
    return Encoded(features, image, y, end)
