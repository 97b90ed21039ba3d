"""One long sequence in chunks for truncated backpropagation, with its state and its KL weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from torch import Tensor

from bayesrnn.data.mapped import was_read
from bayesrnn.warn import warn

Reduction = Literal["mean", "sum over time", "sum"]
"""What the loss of a chunk does with the nats of its steps."""


class Cuts:
    """A long sequence as N parallel streams, in chunks of `unroll` time steps [F17, sec. 3].

    Iterating yields (x, y) for each chunk c = 1..C, with time first: x is (T, N) for tokens and
    (T, N, features) for a series, and y the same one step later (or the given targets).

    `state` carries the recurrent state: it is None at the start of a pass, and is detached when set.

        for x, y in cuts:
            output, cuts.state = model(x, cuts.state)

    Each stream is a contiguous part of the sequence. A remainder of fewer than N steps at the end of the
    sequence is left out. The last chunk of a pass may be shorter.
    """

    def __init__(
        self,
        sequence: Tensor,
        *,
        num_streams: int,
        unroll: int,
        targets: Tensor | None = None,
        batch_first: bool = False,
    ) -> None:
        for name, value in [("num_streams", num_streams), ("unroll", unroll)]:
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1.")
        for name, given in [("sequence", sequence), ("targets", targets)]:
            if not isinstance(given, Tensor | None):
                raise ValueError(
                    f"{name} is a {type(given).__name__}; pass a tensor, such as torch.as_tensor({name})."
                )
        if sequence.dim() not in (1, 2):
            raise ValueError(
                f"sequence has shape {tuple(sequence.shape)}; a sequence is (T,) or (T, features). For many "
                "series use minibatches of them, such as bayesrnn.Minibatches."
            )
        if targets is None:
            sequence, targets = sequence[:-1], sequence[1:]
        elif len(targets) != len(sequence):
            raise ValueError(f"{len(sequence)} inputs but {len(targets)} targets.")
        self.stream_length = len(sequence) // num_streams
        if self.stream_length < 1:
            raise ValueError(
                f"a sequence with {len(sequence)} steps to predict is too short for num_streams="
                f"{num_streams}; use at most {max(len(sequence), 1)}."
            )
        if self.stream_length < unroll:
            warn(
                f"{num_streams} streams of {self.stream_length} steps are shorter than unroll={unroll}; use "
                "a longer sequence, fewer streams or a smaller unroll. Time is the first axis."
            )
        self.num_streams = num_streams
        self.unroll = unroll
        self.batch_first = batch_first
        self._x = self._streams(sequence)
        self._y = self._streams(targets)
        self._state: Any = None

    def __len__(self) -> int:
        """C, the number of chunks in one pass."""
        return -(-self.stream_length // self.unroll)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"chunk {index} of {len(self)}")
        steps = slice(index * self.unroll, (index + 1) * self.unroll)
        x, y = self._x[:, steps], self._y[:, steps]
        for tensor in (self._x, self._y):
            was_read(tensor, x.numel())
        return (x, y) if self.batch_first else (x.transpose(0, 1), y.transpose(0, 1))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self._state = None
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        return (
            f"Cuts({self.num_streams:,} streams of {self.stream_length:,} steps, in {len(self):,} chunks of "
            f"{self.unroll:,})"
        )

    @property
    def loss_scale(self) -> float:
        """1/N: the weight of one nat in a loss that is summed over time and averaged over streams."""
        return 1 / self.num_streams

    def kl_weight(self, reduction: Reduction) -> float:
        """The weight of the KL for each chunk, such that the KL counts once in a pass.

        It goes with how the loss of a chunk is made of the nats of its steps, so that has to be said:

            "mean"            over streams and time                                       1 / (N L)
            "sum over time"   and a mean over streams, the paper's: sum * `loss_scale`    1 / (N C)
            "sum"             over streams and time                                       1 / C

        for N streams of L steps in C chunks.
        """
        if reduction == "mean":
            return self.loss_scale / self.stream_length
        if reduction == "sum over time":
            return self.loss_scale / len(self)
        if reduction == "sum":
            return 1 / len(self)
        known = ", ".join(map(repr, get_args(Reduction)))
        raise ValueError(f"kl_weight({reduction!r}): say how the loss is reduced: {known}.")

    @property
    def state(self) -> Any:
        """The recurrent state after the last chunk; None at the start of a pass."""
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = detach(value)

    def _streams(self, sequence: Tensor) -> Tensor:
        used = sequence[: self.num_streams * self.stream_length]
        return used.reshape(self.num_streams, self.stream_length, *sequence.shape[1:])


def detach(state: Any) -> Any:
    """Detach a recurrent state: a tensor, None, or tuples, lists and dicts of them."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*map(detach, state))
    if isinstance(state, tuple | list):
        return type(state)(map(detach, state))
    if isinstance(state, dict):
        return {key: detach(value) for key, value in state.items()}
    return state
