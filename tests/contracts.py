"""The kinds of module people use, each as a case that every method must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@dataclass(frozen=True)
class Case:
    """A module, its inputs, and a loss; in float64."""

    model: nn.Module
    inputs: tuple[Any, ...]
    seed: int = 7  # of dropout masks

    def loss(self, output: Any) -> Tensor:
        """A smooth function of every output tensor."""
        total = torch.zeros((), dtype=torch.float64)
        for tensor in _tensors(output):
            target = torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
            total = total + (tensor - target).square().sum() / 2
        return total

    def closure(self) -> Tensor:
        torch.manual_seed(self.seed)
        return self.loss(self.model(*self.inputs))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [tensor for part in output for tensor in _tensors(part)]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0])[0]


class CellLoop(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)


class TiedLanguageModel(nn.Module):
    """Embedding and softmax share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 4)
        self.softmax = nn.Linear(4, 7)
        self.softmax.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.softmax(self.lstm(self.embedding(x))[0]).log_softmax(-1)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=2)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(x)))


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0]))
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.gain = nn.Parameter(torch.tensor(1.5))  # a scalar parameter

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.tanh(x @ self.weight * self.scale)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([WithBuffers(), WithBuffers()])
        self.extra = nn.ParameterList([nn.Parameter(torch.randn(3))])
        self.head = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) + self.extra[0]
        return self.head(x)


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    return model


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)
    )


def _sequence(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "lstm": lambda: (nn.LSTM(3, 4), (_sequence(5, 2, 3),)),
    "lstm-2-layers-dropout": lambda: (nn.LSTM(3, 4, 2, dropout=0.5), (_sequence(5, 2, 3),)),
    "lstm-bidirectional": lambda: (nn.LSTM(3, 4, 2, bidirectional=True), (_sequence(5, 2, 3),)),
    "lstm-proj": lambda: (nn.LSTM(3, 4, proj_size=2), (_sequence(5, 2, 3),)),
    "lstm-batch-first": lambda: (nn.LSTM(3, 4, batch_first=True), (_sequence(2, 5, 3),)),
    "lstm-no-bias": lambda: (nn.LSTM(3, 4, bias=False), (_sequence(5, 2, 3),)),
    "gru": lambda: (nn.GRU(3, 4, 2), (_sequence(5, 2, 3),)),
    "rnn-relu": lambda: (nn.RNN(3, 4, nonlinearity="relu"), (_sequence(5, 2, 3),)),
    "packed": lambda: (Packed(), (_sequence(5, 2, 3), torch.tensor([3, 5]))),
    "lstm-cell": lambda: (CellLoop(nn.LSTMCell(3, 4)), (_sequence(5, 2, 3),)),
    "gru-cell": lambda: (CellLoop(nn.GRUCell(3, 4)), (_sequence(5, 2, 3),)),
    "padded-embedding": lambda: (Padded(), (torch.tensor([[0, 2, 6], [2, 1, 3]]),)),
    "tied": lambda: (TiedLanguageModel(), (torch.randint(7, (5, 2)),)),
    "linear": lambda: (nn.Linear(3, 2), (_sequence(6, 3),)),
    "conv-batchnorm": lambda: (_conv(), (_sequence(4, 1, 6, 6),)),
    "attention": lambda: (
        nn.MultiheadAttention(4, 2),
        (_sequence(5, 2, 4), _sequence(5, 2, 4), _sequence(5, 2, 4)),
    ),
    "transformer": lambda: (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1), 2, enable_nested_tensor=False
        ),
        (_sequence(5, 2, 4),),
    ),
    "frozen": lambda: (_frozen(), (_sequence(6, 3),)),
    "buffers": lambda: (WithBuffers(), (_sequence(6, 3),)),
    "nested": lambda: (Nested(), (_sequence(6, 3),)),
}


def make_case(name: str) -> Case:
    torch.manual_seed(0)
    model, inputs = CASES[name]()
    return Case(model.double(), inputs)
