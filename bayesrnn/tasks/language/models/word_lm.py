"""Zaremba's LSTM language model (Zaremba, Sutskever and Vinyals, 2014)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from bayesrnn.devices import in_float32

State = tuple[Tensor, Tensor]


class WordLM(nn.Module):
    """Embedding, a stack of LSTMs, softmax; dropout on the non-recurrent connections only."""

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        layers: int = 2,
        dropout: float = 0.0,
        tied: bool = False,
        embedding: int | None = None,
    ) -> None:
        """`embedding` is the width of the embedding; by default that of the LSTM."""
        super().__init__()
        width = embedding or hidden
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, vocabulary)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Tokens (T, N) -> logits (T, N, V) of each next word, and the new state."""
        output, after = self.lstm(self.dropout(self.embedding(x)), state)
        return self.out(self.dropout(output)), after

    def loss(self, x: Tensor, y: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Nats summed over time and averaged over the N streams, and the new state."""
        logits, after = self(x, state)
        return nats_per_stream(logits, y), after


def nats_per_stream(logits: Tensor, y: Tensor) -> Tensor:
    """-log p(y) summed over time and averaged over the streams: logits (T, N, V), y (T, N)."""
    logits = in_float32(logits)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
