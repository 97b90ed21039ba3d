"""Variational dropout for RNNs: one mask for the whole sequence (Gal and Ghahramani, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayesrnn.tasks.language.models.word_lm import State, nats_per_stream


class VariationalDropoutLM(nn.Module):
    """The LSTM language model with masks drawn once per minibatch and held over time.

    There are masks on the embedding (whole words), on the inputs of each layer and of the softmax (for
    each stream), and on the recurrent connections. The last is applied to the weight matrix, one column
    for each unit of the state: it is shared by all streams, so that the fused kernel can be used.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        layers: int = 2,
        dropout: float = 0.5,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.p = dropout
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstms = nn.ModuleList(nn.LSTM(hidden, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, vocabulary)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Tokens (T, N) -> logits (T, N, V), and the state in the form of a stacked LSTM."""
        output = F.embedding(x, self._dropped_words(self.embedding.weight))
        h, c = [], []
        for layer, lstm in enumerate(self.lstms):
            carried = (
                None
                if state is None
                else (state[0][layer : layer + 1], state[1][layer : layer + 1])
            )
            dropped = {"weight_hh_l0": self._dropped_units(lstm.get_parameter("weight_hh_l0"))}
            output = self._locked_dropout(output)
            output, (h_layer, c_layer) = functional_call(lstm, dropped, (output, carried))
            h.append(h_layer)
            c.append(c_layer)
        return self.out(self._locked_dropout(output)), (torch.cat(h), torch.cat(c))

    def loss(self, x: Tensor, y: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Nats summed over time and averaged over the streams."""
        logits, after = self(x, state)
        return nats_per_stream(logits, y), after

    def _mask(self, like: Tensor, *shape: int) -> Tensor:
        keep = 1 - self.p
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(keep).div_(keep)

    def _dropped_words(self, weight: Tensor) -> Tensor:
        return weight * self._mask(weight, len(weight), 1) if self.training and self.p else weight

    def _dropped_units(self, weight: Tensor) -> Tensor:
        return (
            weight * self._mask(weight, 1, weight.shape[1]) if self.training and self.p else weight
        )

    def _locked_dropout(self, x: Tensor) -> Tensor:
        return x * self._mask(x, 1, *x.shape[1:]) if self.training and self.p else x
