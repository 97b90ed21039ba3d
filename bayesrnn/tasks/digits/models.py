"""Image classifiers: a multilayer perceptron and LeNet."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class Perceptron(nn.Module):
    """Hidden layers of rectified linear units (Blundell et al., 2015)."""

    def __init__(
        self, inputs: int, classes: int, hidden: int = 400, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.out = nn.Linear(widths[-1], classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures (N, 1, H, W) -> logits (N, classes)."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = self.dropout(layer(x).relu())
        return self.out(x)


class LeNet(nn.Module):
    """Two convolutions, each with pooling, then two linear layers (LeCun et al., 1998)."""

    def __init__(
        self, size: int, classes: int, hidden: int = 120, channels: int = 16, dropout: float = 0.0
    ) -> None:
        super().__init__()
        kernel = 5 if size >= 16 else 3
        self.conv1 = nn.Conv2d(1, channels, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv2d(channels, 2 * channels, kernel, padding=kernel // 2)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(2 * channels * (size // 4) ** 2, hidden)
        self.out = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures (N, 1, H, W) -> logits (N, classes)."""
        x = self.pool(self.conv1(x).relu())
        x = self.pool(self.conv2(x).relu())
        x = self.dropout(self.hidden(x.flatten(1)).relu())
        return self.out(x)
