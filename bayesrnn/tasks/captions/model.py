"""Show and Tell (Vinyals et al., 2016): an LSTM reads an image first, then the words of its caption."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrnn.devices import in_float32

State = tuple[Tensor, Tensor]

PADDING = -1
"""In place of a word, after the end of a caption."""


class Captioner(nn.Module):
    """Features of an image, then words, through one LSTM; dropout on the non-recurrent connections."""

    def __init__(
        self, features: int, vocabulary: int, embedding: int, hidden: int, dropout: float = 0.0
    ) -> None:
        """`features` is the number of features of an image."""
        super().__init__()
        self.image = nn.Linear(features, embedding)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, vocabulary)

    def copy(self) -> Captioner:
        """A captioner of its own with the weights as they are now, to predict with."""
        vocabulary, embedding = self.embedding.weight.shape
        like = self.out.weight
        twin = Captioner(self.image.in_features, vocabulary, embedding, self.lstm.hidden_size)
        twin.to(like.device, like.dtype).requires_grad_(False).eval()
        with torch.no_grad():
            for name, weight in twin.named_parameters():
                weight.copy_(
                    attrgetter(name)(self)
                )  # also where a posterior has taken the parameter's place
        return twin

    def begin(self, features: Tensor) -> State:
        """Features (N, F) of images -> the state in which their captions begin."""
        _, state = self.lstm(self.dropout(self.image(features))[None])
        return state

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Tokens (T, N) -> logits (T, N, V) of each next word, and the new state."""
        output, after = self.lstm(self.dropout(self.embedding(x)), state)
        return self.out(self.dropout(output)), after

    def word_logits(
        self, features: Tensor, x: Tensor, y: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Logits (words, V) of the words of whole captions: features (N, F), x and y (T, N).

        x begins with the end-of-sentence token; y are the next words, and PADDING after the last. The
        logits are those of y[y != PADDING]: padding, which comes last, has no part in them. `places` are
        `places_of(y)`, if they are known already: on a GPU, to find them is to wait for it.
        """
        places = places_of(y) if places is None else places
        inputs = torch.cat([self.image(features)[None], self.embedding(x)])
        output, _ = self.lstm(self.dropout(inputs))
        return self.out(self.dropout(output[1:].flatten(0, 1)[places]))

    def nats(self, features: Tensor, x: Tensor, y: Tensor, places: Tensor | None = None) -> Tensor:
        """-log p(y), summed over the words of all captions."""
        places = places_of(y) if places is None else places
        logits = in_float32(self.word_logits(features, x, y, places))
        return F.cross_entropy(logits, y.flatten()[places], reduction="sum")


def places_of(y: Tensor) -> Tensor:
    """Where the words of captions (T, N) are, padding left out, time step by time step."""
    return (y != PADDING).flatten().nonzero().squeeze(1)
