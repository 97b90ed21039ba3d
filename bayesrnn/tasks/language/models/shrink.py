"""Remove the dead units of a language model: smaller matrices, the same predictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrnn.tasks.language.models.word_lm import WordLM


@dataclass(frozen=True)
class Shrunk:
    """A smaller model, and its numbers of units before and after."""

    model: WordLM
    embedding: tuple[int, int]
    hidden: tuple[int, int]
    """Units of each layer: the most that any layer needs."""


@torch.no_grad()
def shrink(model: WordLM) -> Shrunk:
    """Remove units that cannot change a prediction: always 0, or without outgoing connections.

    An LSTM unit is always 0 if its row of the candidate gate is zero, weights and bias:
    c = f c + i tanh(0) = 0 from a zero state. It has no outgoing connections if its columns are zero in
    the recurrent matrix and in the layer above, ignoring the rows of dead units. All layers keep the same
    number of units, as nn.LSTM requires. A tied model is returned unchanged: its embedding is its softmax.
    """
    lstm = model.lstm
    width, hidden, layers = lstm.input_size, lstm.hidden_size, lstm.num_layers
    tied = model.out.weight is model.embedding.weight
    inputs, units = _all(model) if tied else _alive(model)
    keep_inputs = _indices(inputs, at_least=1)
    size = max(1, *(int(alive.sum()) for alive in units))
    keep_units = [_indices(alive, at_least=size) for alive in units]
    small = WordLM(
        model.embedding.num_embeddings,
        size,
        layers,
        embedding=len(keep_inputs),
        tied=tied,
        dropout=model.dropout.p,
    ).to(model.out.weight)
    small.embedding.weight.copy_(model.embedding.weight[:, keep_inputs])
    below = keep_inputs
    for layer, kept in enumerate(keep_units):
        rows = torch.cat([kept + gate * hidden for gate in range(4)])
        for name in ("bias_ih", "bias_hh"):
            getattr(small.lstm, f"{name}_l{layer}").copy_(getattr(lstm, f"{name}_l{layer}")[rows])
        for name, columns in (("weight_ih", below), ("weight_hh", kept)):
            whole = getattr(lstm, f"{name}_l{layer}")
            getattr(small.lstm, f"{name}_l{layer}").copy_(whole[rows][:, columns])
        below = kept
    small.out.weight.copy_(model.out.weight[:, below])
    small.out.bias.copy_(model.out.bias)
    small.train(model.training)
    return Shrunk(small, (width, len(keep_inputs)), (hidden, size))


def _all(model: WordLM) -> tuple[Tensor, list[Tensor]]:
    """Every input of the first layer and every unit of each layer."""
    lstm = model.lstm
    units = [torch.ones(lstm.hidden_size, dtype=torch.bool) for _ in range(lstm.num_layers)]
    return torch.ones(lstm.input_size, dtype=torch.bool), units


def _alive(model: WordLM) -> tuple[Tensor, list[Tensor]]:
    """Which inputs of the first layer and which units of each layer can change a prediction."""
    lstm = model.lstm
    inputs, units = (model.embedding.weight != 0).any(0), _all(model)[1]
    while True:
        count = int(inputs.sum()) + sum(int(alive.sum()) for alive in units)
        for layer, alive in enumerate(units):
            below = inputs if layer == 0 else units[layer - 1]
            w_ih, w_hh = (_gates(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh"))
            b = _gates(lstm, f"bias_ih_l{layer}") + _gates(lstm, f"bias_hh_l{layer}")
            # The candidate gate, the third of torch's four, decides whether anything enters the cell.
            fed = (w_ih[2][:, below] != 0).any(1) | (w_hh[2][:, alive] != 0).any(1) | (b[2] != 0)
            read = (w_hh[:, alive] != 0).any(0).any(0)
            if layer + 1 < len(units):
                above = _gates(lstm, f"weight_ih_l{layer + 1}")
                read = read | (above[:, units[layer + 1]] != 0).any(0).any(0)
            else:
                read = read | (model.out.weight != 0).any(0)
            alive &= fed & read
            if layer == 0:
                inputs &= (w_ih[:, alive] != 0).any(0).any(0)
        if count == int(inputs.sum()) + sum(int(alive.sum()) for alive in units):
            return inputs, units


def _gates(lstm, name: str) -> Tensor:
    """A matrix or bias of the LSTM by gate: (4, H, ...), input, forget, candidate, output."""
    whole = getattr(lstm, name)
    return whole.view(4, -1, *whole.shape[1:])


def _indices(alive: Tensor, at_least: int) -> Tensor:
    """The indices of living units, padded with the first dead ones to `at_least`."""
    living, dead = alive.nonzero().flatten(), (~alive).nonzero().flatten()
    return torch.cat([living, dead[: max(0, at_least - len(living))]]).sort().values
