"""What the model is called with: inputs as they are given, a dict of them, or the batches of a DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from bayesrnn.warn import warn

T = TypeVar("T")
OPTIONS = (
    *("samples", "seed", "states", "read", "keep_samples"),
    *("inputs", "batch_axis", "progress"),
)
"""The keywords of `predict` that are not the model's."""
Inputs = Callable[[Any], Any]
"""A batch of a DataLoader to what the model is called with: a tensor, a dict, or a tuple of arguments."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call of the model."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def __call__(self, model: nn.Module, state: tuple[Any, ...] = ()) -> Any:
        try:
            return model(*self.arguments, *state, **self.keywords)
        except TypeError as error:
            if meant := self._meant(str(error)):
                raise TypeError(f"{error}; did you mean {meant}=?") from error
            raise

    def _meant(self, said: str) -> str | None:
        """The option of `predict` that is like a keyword which the model refused."""
        for name in self.keywords:
            near = get_close_matches(name, OPTIONS, n=1, cutoff=0.8)
            if near and f"unexpected keyword argument '{name}'" in said:
                return near[0]
        return None

    def to(self, device: torch.device) -> Call:
        return Call(
            tuple(_moved(value, device) for value in self.arguments),
            {name: _moved(value, device) for name, value in self.keywords.items()},
        )


def direct_call(
    data: tuple[Any, ...], keywords: Mapping[str, Any], inputs: Inputs | None, states: object
) -> Call:
    """The call for inputs that are no DataLoader; a single dict is a dict of keywords."""
    if inputs is not None:
        raise ValueError(
            f"inputs={_kind(inputs)} is for the batches of a DataLoader. For an argument of the model with "
            'that name use predict(posterior, {"inputs": ...}).'
        )
    is_dict = len(data) == 1 and isinstance(data[0], Mapping)
    if states is not None and (is_dict or not data):
        raise ValueError("states= needs inputs by position: the state is passed after them.")
    return Call((), {**data[0], **keywords}) if is_dict else Call(data, keywords)


def loader_of(data: tuple[Any, ...], states: object) -> DataLoader | None:
    """The DataLoader among the inputs, if there is one; it must be the only one."""
    loader = next((part for part in data if isinstance(part, DataLoader)), None)
    if loader is None:
        return None
    if len(data) > 1:
        raise ValueError(
            f"a DataLoader among {len(data)} inputs; it must be the only one by position."
        )
    if states is not None:
        raise ValueError("states= with a DataLoader; predict the parts of a sequence in turn.")
    if isinstance(loader.sampler, RandomSampler | WeightedRandomSampler):
        warn(
            "the DataLoader shuffles, so the order of the predictions is unknown; use shuffle=False."
        )
    return loader


def over_batches(
    loader: DataLoader,
    predict: Callable[[Call], T],
    keywords: Mapping[str, Any],
    inputs: Inputs | None,
    device: torch.device,
    progress: bool | None,
) -> list[T]:
    """The prediction of each batch in turn, on the model's device."""
    if inputs is not None and not callable(inputs):
        raise ValueError(f"inputs={_kind(inputs)}; use a function of a batch.")
    show = sys.stderr.isatty() if progress is None else progress
    with torch.random.fork_rng(devices=[]):  # an iterator of a DataLoader draws a seed
        parts = [
            predict(_batch_call(batch, keywords, inputs).to(device))
            for batch in shown(loader, "predicting", show)
        ]
    if not parts:
        raise ValueError("the DataLoader has no batches; is its data set empty?")
    return parts


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors of all batches, one after the other along the batch axis."""
    shapes = [list(tensor.shape) for tensor in tensors]
    for shape in shapes:
        del shape[axis]
    if any(shape != shapes[0] for shape in shapes):
        different = sorted({tuple(tensor.shape) for tensor in tensors})[:3]
        raise ValueError(
            f"the batches give predictions of shapes {different}, which cannot be joined along one axis; "
            "say which axis is the batch with batch_axis=, or pad all batches to one length."
        )
    return torch.cat(list(tensors), axis)


def shown(items: Iterable[T], what: str, show: bool | None) -> Iterator[T]:
    """The items, with a progress bar and the time left on standard error."""
    if not show:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, what, console=console, transient=console.is_terminal)


def _batch_call(batch: Any, keywords: Mapping[str, Any], inputs: Inputs | None) -> Call:
    if inputs is not None:
        chosen = inputs(batch)
        if isinstance(chosen, tuple | list):
            return Call(tuple(chosen), keywords)
        return _one_input(chosen, keywords)
    if isinstance(batch, tuple | list):
        if len(batch) != 1:
            raise ValueError(
                f"a batch of the DataLoader is a {type(batch).__name__} of {len(batch)}; say what the model "
                "is called with, such as inputs=lambda batch: batch[0]."
            )
        batch = batch[0]
    return _one_input(batch, keywords)


def _one_input(value: Any, keywords: Mapping[str, Any]) -> Call:
    if isinstance(value, Mapping):
        return Call((), {**value, **keywords})
    return Call((value,), keywords)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _kind(value: object) -> str:
    return "a function" if callable(value) else f"a {type(value).__name__}"
