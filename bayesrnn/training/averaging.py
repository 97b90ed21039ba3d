"""A trailing average of the weights, which predicts better than the last, noisy iterate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

STEPS_BETWEEN_UPDATES = 10
"""Training steps between updates of the average; consecutive iterates hardly differ."""


class WeightAverage:
    """The average of all trained parameters, over the latest `share` of the steps.

        average <- average + (weights - average) / (1 + share * (t - 1))      at update t = 1, 2, ...

    share = 1 is the mean of all weights so far (Polyak and Juditsky, 1992). A smaller share forgets the
    early weights: it averages over roughly the last `share` of the updates (polynomial-decay averaging,
    Shamir and Zhang, 2013). So neither a window length nor a starting step has to be chosen.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], share: float) -> None:
        self.parameters = list(parameters)
        self.share = share
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights in the average."""
        weight = 1 / (1 + self.share * self.updates)
        self.updates += 1
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            average.lerp_(parameter, weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block the parameters hold the average; their own values are restored afterwards."""
        current = [parameter.detach().clone() for parameter in self.parameters]
        try:
            _copy(self.parameters, self.averages)
            yield
        finally:
            _copy(self.parameters, current)

    def state_dict(self) -> dict[str, Tensor]:
        tensors = {str(index): average for index, average in enumerate(self.averages)}
        return {**tensors, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        _copy(self.averages, [state[str(index)] for index in range(len(self.averages))])
        self.updates = int(state["updates"])


@torch.no_grad()
def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    for ours, theirs in zip(to, source, strict=True):
        ours.copy_(theirs)
