"""Independent examples in shuffled minibatches, each with its share of the KL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

Weighting = Literal["uniform", "geometric"]
Reduction = Literal["mean", "sum"]
"""What the loss of a minibatch does with the nats of its examples."""

MINIBATCHES_SORTED_TOGETHER = 50
"""The minibatches that examples of similar length are exchanged between."""


class Minibatches:
    """Examples (x, y) in minibatches, in a new random order each pass.

        for (x, y), kl_weight in zip(minibatches, minibatches.kl_weights, strict=True):
            with posterior.sample() as draw:
                F.cross_entropy(model(x), y).backward()
            posterior.accumulate_grad(draw, kl_weight=kl_weight)

    The shares pi_i of the KL add up to one over a pass of M minibatches: uniform, pi_i = 1/M, or
    geometric, pi_i = 2^(M-i) / (2^M - 1), with which the first minibatches mostly follow the prior and the
    later ones the data (Blundell et al., 2015, sec. 3.4). With uniform shares every weight is
    `kl_weight("mean")`.
    One minibatch may be smaller than the others: the last, unless `lengths` are given.

    With `lengths`, one for each example, a minibatch has examples of similar length, so that little of it is
    padding; which examples come together, and the order of the minibatches, are still random.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        weighting: Weighting = "uniform",
        seed: int = 0,
        lengths: Tensor | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs but {len(y)} targets.")
        if lengths is not None and len(lengths) != len(x):
            raise ValueError(f"{len(x)} inputs but {len(lengths)} lengths.")
        if not len(x):
            raise ValueError("there are no examples.")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r} must be a whole number, at least 1.")
        if weighting not in get_args(Weighting):
            raise ValueError(f"weighting={weighting!r}; use {' or '.join(get_args(Weighting))}.")
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.weighting = weighting
        self.seed = seed
        self.lengths = lengths
        self.kl_weights = tuple(self._share(index) * self.loss_scale for index in range(len(self)))
        """pi_i / N for each minibatch of a pass: the weight of the KL with a mean over examples as loss."""
        self.begin(0)
        self._passes = 0  # no pass has begun yet

    def __len__(self) -> int:
        """M, the number of minibatches in one pass."""
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.begin(self._passes)
        for index in range(len(self)):
            yield self[index]

    def begin(self, number: int) -> None:
        """Shuffle for pass `number`; the order depends only on the seed and the number."""
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * number)
        order = torch.randperm(len(self.x), generator=generator).to(self.x.device)
        self._chosen = self._divide(order, generator)
        self._passes = number + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"minibatch {index} of {len(self)}")
        chosen = self._chosen[index]
        return self.x[chosen], self.y[chosen]

    def __repr__(self) -> str:
        return (
            f"Minibatches({len(self.x):,} examples, in {len(self):,} minibatches of {self.batch_size:,}, "
            f"{self.weighting} shares of the KL)"
        )

    @property
    def loss_scale(self) -> float:
        """1/N, with N the batch size: the weight of one nat in the loss."""
        return 1 / self.batch_size

    def kl_weight(self, reduction: Reduction) -> float:
        """The weight of the KL, the same for every minibatch, for a loss that is this over its examples.

        "mean" 1 / (M N), "sum" 1 / M. ValueError if the shares are not uniform.
        """
        if reduction not in get_args(Reduction):
            raise ValueError(
                f"kl_weight({reduction!r}): say how the loss is reduced over the examples: 'mean' or 'sum'."
            )
        if self.weighting != "uniform":
            raise ValueError(
                f"with {self.weighting} weighting each minibatch has a KL weight of its own: iterate over "
                "zip(minibatches, minibatches.kl_weights)."
            )
        return self.kl_weights[0] if reduction == "mean" else 1 / len(self)

    def _divide(self, order: Tensor, generator: torch.Generator) -> list[Tensor]:
        """The examples of each minibatch, for a random order of all examples."""
        if self.lengths is None:
            return list(order.split(self.batch_size))
        pools = order.split(MINIBATCHES_SORTED_TOGETHER * self.batch_size)
        divided = [
            chosen
            for pool in pools
            for chosen in pool[self.lengths[pool].argsort(stable=True)].split(self.batch_size)
        ]
        return [divided[i] for i in torch.randperm(len(divided), generator=generator).tolist()]

    def _share(self, index: int) -> float:
        """pi_i, counted from 0."""
        if self.weighting == "uniform":
            return 1 / len(self)
        # Later shares are negligible, and products with them would be denormal, which is slow.
        if index >= 64:
            return 0.0
        return 2.0 ** -(index + 1) / (1 - 2.0 ** -len(self))
