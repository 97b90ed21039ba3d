"""The random numbers of a run on each rank: noise for the weights, and masks for dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from bayesrnn import ranks
from bayesrnn.devices import generator_on, rng_state, seed_from, set_rng_state
from bayesrnn.training.settings import Settings


class Randomness:
    """Generators that depend on a run's seed and the rank; their states belong into a checkpoint."""

    def __init__(self, config: Settings, device: torch.device) -> None:
        self.seed, self.shared, self.device = config.seed, config.shared_noise, device
        self.noise = generator_on(device, self._seed_of("noise", config.seed + 1))
        self.common = self.noise
        """Noise that is the same on all ranks: the other, where that is so already."""
        if ranks.world() > 1 and not config.shared_noise:
            self.common = generator_on(device, seed_from(config.seed, "common"))
        self._masks = generator_on(device, self._seed_of("dropout", config.seed + 2)).get_state()
        self._in_use = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block torch's own generator, which dropout uses, is the run's."""
        outside = rng_state(self.device)
        set_rng_state(self.device, self._masks)
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = False
            self._masks = rng_state(self.device)
            set_rng_state(self.device, outside)

    def states(self) -> dict[str, Tensor]:
        """The states of all ranks' generators, by name."""
        masks = rng_state(self.device) if self._in_use else self._masks
        own = {"rng.noise": self.noise.get_state(), "rng.dropout": masks}
        states = {}
        for name, state in own.items():
            for rank, theirs in enumerate(ranks.gather(state[None])):
                states[_of_rank(name, rank)] = theirs
        return (
            states
            if self.common is self.noise
            else {**states, "rng.common": self.common.get_state()}
        )

    def restore(
        self, states: Mapping[str, Tensor], place: tuple[int, int], *, same_device: bool
    ) -> None:
        """Go on with the random numbers of a checkpoint, at a place in training: epoch and minibatch.

        A rank that it does not know, or another kind of device, begins with new ones, which depend on the
        place: none is used twice.
        """

        def restored(name: str, generator: Generator) -> Tensor:
            state = states.get(name) if same_device else None
            if state is None:
                generator.manual_seed(seed_from(self.seed, name, *place))
            else:
                generator.set_state(state)
            return generator.get_state()

        restored(_of_rank("rng.noise", 0 if self.shared else ranks.rank()), self.noise)
        if self.common is not self.noise:
            restored("rng.common", self.common)
        self._masks = restored(_of_rank("rng.dropout", ranks.rank()), Generator(self.device))

    def _seed_of(self, purpose: str, first: int) -> int:
        """The seed of a generator of this rank: on the first, that of a single process."""
        same = ranks.is_first() or (purpose == "noise" and self.shared)
        return first if same else seed_from(self.seed, purpose, ranks.rank())


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name
