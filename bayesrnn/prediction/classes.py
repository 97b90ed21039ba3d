"""Predictive distributions over classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesrnn.ensemble import PredictiveAverage, log_softmax
from bayesrnn.posterior import Posterior
from bayesrnn.prediction.inputs import Call, Inputs, direct_call, joined, loader_of, over_batches
from bayesrnn.prediction.outputs import Read, check, outputs, read_logits


@dataclass(frozen=True, repr=False, eq=False)
class Categorical:
    """A distribution over classes (the last axis of `log_probs`); entropies in nats.

    mutual_information = entropy - expected_entropy measures how much the weight samples disagree: the
    part of the uncertainty that more data would remove. It is 0 at the mean weights.
    """

    log_probs: Tensor  # (..., classes)
    entropy: Tensor  # (...)
    expected_entropy: Tensor  # (...)
    samples: int
    """How many weight samples this is the average of; 0 for the mean weights."""
    states: tuple[Any, ...] = ()
    """The recurrent state of each sample, for the next part of the same sequence."""
    sample_log_probs: Tensor | None = None  # (samples, ..., classes)
    """Each sample's own, with `keep_samples=True`."""

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    @property
    def mutual_information(self) -> Tensor:
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def log_prob(self, y: Tensor) -> Tensor:
        """log p of the classes `y` (...), in nats."""
        shape, classes = self.log_probs.shape[:-1], self.log_probs.shape[-1]
        if y.shape != shape or y.is_floating_point():
            raise ValueError(
                f"y is {tuple(y.shape)} {y.dtype}; it must be classes of shape {tuple(shape)}."
            )
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise ValueError(
                f"y has classes from {int(y.min())} to {int(y.max())}, of 0 to {classes - 1}; "
                "leave the others out, of y and of the inputs."
            )
        return self.log_probs.gather(-1, y.long()[..., None]).squeeze(-1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The probabilities of the k likeliest classes, and the classes: both (..., k)."""
        count = self.log_probs.shape[-1]
        if not isinstance(k, int) or not 1 <= k <= count:
            raise ValueError(f"top({k!r}) of {count} classes; use 1 to {count}.")
        probs, classes = self.probs.topk(k)
        return probs, classes

    def __repr__(self) -> str:
        weights = f"weight samples: {self.samples}" if self.samples else "at the mean weights"
        return (
            f"Categorical({tuple(self.entropy.shape)} over {self.log_probs.shape[-1]:,} classes, {weights}, "
            f"mean entropy {self.entropy.mean():.3g} nats, mutual information "
            f"{self.mutual_information.mean():.3g})"
        )


def predict(
    posterior: Posterior,
    *data: Any,
    samples: int = 10,
    seed: int = 0,
    states: Sequence[Any] | None = None,
    read: Read | None = None,
    keep_samples: bool = False,
    inputs: Inputs | None = None,
    batch_axis: int = 0,
    progress: bool | None = None,
    **keywords: Any,
) -> Categorical:
    """Class probabilities averaged over `samples` draws of the weights; `samples=0` for the mean.

    The model is called as `model(*data, **keywords)`, with a single dict as `model(**data)`, and with
    `states` from an earlier call as `model(*data, state)`. It must return logits (..., classes), a pair
    (logits, state) or an object with `.logits`. The same `seed` gives the same weight samples in every
    call, so a long sequence can be predicted in parts. The model and the posterior are not changed.

    Args:
        posterior: what to predict with.
        data: the inputs; or one DataLoader, whose batches are predicted in turn and joined.
        samples: how many weights to draw.
        seed: which weights.
        states: those of the prediction of the sequence so far.
        read: converts any other output of the model to logits or (logits, state).
        keep_samples: keep each sample's log probabilities too, which is much for many classes.
        inputs: a batch of the DataLoader to what the model is called with: a tensor, a dict, or a tuple of
            arguments.
        batch_axis: the axis of the logits along which batches are joined.
        progress: show a progress bar; by default for a DataLoader, on a terminal.
        keywords: more inputs, by name.
    """
    check(posterior, samples, states)
    loader = loader_of(data, states)
    if loader is None:
        call = direct_call(data, keywords, inputs, states)
        return _average(posterior, call, samples, seed, states, read, keep_samples, progress)

    def of_batch(call: Call) -> Categorical:
        part = _average(posterior, call, samples, seed, None, read, keep_samples)
        return replace(part, states=())

    device = posterior.rho.device
    return _joined(over_batches(loader, of_batch, keywords, inputs, device, progress), batch_axis)


def _average(
    posterior: Posterior,
    call: Call,
    samples: int,
    seed: int,
    states: Sequence[Any] | None,
    read: Read | None,
    keep_samples: bool,
    progress: bool | None = None,
) -> Categorical:
    average, kept, last_states = PredictiveAverage(), [], []
    for output in outputs(posterior, call, samples, seed, states, progress):
        logits, state = read_logits(output, read)
        log_probs = log_softmax(logits)
        average.add(log_probs)
        last_states.append(state)
        if keep_samples:
            kept.append(log_probs)
    return Categorical(
        average.log_probs,
        average.entropy,
        average.expected_entropy,
        samples,
        tuple(last_states),
        torch.stack(kept) if keep_samples else None,
    )


def _joined(parts: Sequence[Categorical], batch_axis: int) -> Categorical:
    dims = parts[0].entropy.dim()
    if not -dims - 1 <= batch_axis < dims or batch_axis == -1:
        raise ValueError(
            f"batch_axis={batch_axis} is no batch axis of logits with {dims + 1} axes, of which the last "
            "is the class."
        )
    axis = batch_axis % (dims + 1)
    kept = [part.sample_log_probs for part in parts if part.sample_log_probs is not None]
    return Categorical(
        joined([part.log_probs for part in parts], axis),
        joined([part.entropy for part in parts], axis),
        joined([part.expected_entropy for part in parts], axis),
        parts[0].samples,
        sample_log_probs=joined(kept, axis + 1) if kept else None,
    )
