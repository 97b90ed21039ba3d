"""The model's output for each weight sample, in the form that predictions are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn.ensemble import evaluating, sample_generators
from bayesrnn.posterior import Posterior
from bayesrnn.prediction.inputs import Call, shown

Read = Callable[[Any], Any]


def check(posterior: object, samples: object, states: Sequence[Any] | None = None) -> None:
    """Raise if these cannot be predicted with."""
    if not isinstance(posterior, Posterior):
        hint = "; use its .posterior" if hasattr(posterior, "posterior") else ""
        raise ValueError(f"this needs a Posterior; got a {type(posterior).__name__}{hint}.")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples={samples!r}; use 0 for the mean weights, or 1 and more.")
    count = max(samples, 1)
    if states is not None and len(states) != count:
        raise ValueError(f"{len(states)} states for {count} samples; pass those of the last call.")


def generators_of(posterior: Posterior, samples: int, seed: int) -> list[Generator]:
    """One for each weight sample, and one for the mean weights."""
    return sample_generators(max(samples, 1), seed, posterior.rho.device)


@contextmanager
def weight_sample(posterior: Posterior, samples: int, generator: Generator) -> Iterator[None]:
    """Inside the block the model holds one weight sample (or the mean), in evaluation mode."""
    weights = posterior.sample(generator=generator) if samples else posterior.mean()
    with torch.no_grad(), evaluating(posterior.model), weights:
        yield


def outputs(
    posterior: Posterior,
    call: Call,
    samples: int,
    seed: int,
    states: Sequence[Any] | None,
    progress: bool | None,
) -> Iterator[Any]:
    """What the model returns with each weight sample, one for the whole sequence."""
    generators = generators_of(posterior, samples, seed)
    for s, generator in enumerate(shown(generators, "predicting", progress)):
        with weight_sample(posterior, samples, generator):
            output = call(posterior.model, () if states is None else (states[s],))
        yield output


def read_logits(output: Any, read: Read | None) -> tuple[Tensor, Any]:
    """(logits, state) of an output."""
    logits, state = _parts(output, read, 2, "logits or (logits, state)")
    if logits.dim() < 2 or logits.shape[-1] < 2:
        raise ValueError(
            f"the model returned logits of shape {tuple(logits.shape)}; they must be (..., classes) "
            "with two classes or more. For one logit z use read=lambda z: torch.stack([0 * z, z], -1); "
            "for real values predict_values."
        )
    return logits, state


def read_values(output: Any, read: Read | None) -> tuple[Tensor, Tensor, Any]:
    """(mean, variance, state) of an output, in float32 at least; without a variance it is 0."""
    wanted = "mean, (mean, variance) or (mean, variance, state)"
    mean, variance, state = _parts(output, read, 3, wanted)
    variance = torch.zeros_like(mean) if variance is None else variance
    _check_variance(mean, variance)
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return mean.to(dtype), variance.to(dtype), state


def _parts(output: Any, read: Read | None, count: int, wanted: str) -> tuple[Any, ...]:
    """The entries of an output, and None for those it does not have."""
    output = output if read is None else read(output)
    got = f"a {type(output).__name__}"
    if not isinstance(output, tuple):
        output = (getattr(output, "logits", output),)  # as Hugging Face's models name it
    if not 1 <= len(output) <= count or not isinstance(output[0], Tensor):
        raise ValueError(f"the model returned {got}; use read= to turn it into {wanted}.")
    return (*output, *[None] * (count - len(output)))


def _check_variance(mean: Tensor, variance: object) -> None:
    if not isinstance(variance, Tensor) or variance.shape != mean.shape:
        got = tuple(variance.shape) if isinstance(variance, Tensor) else type(variance).__name__
        raise ValueError(
            f"the mean has shape {tuple(mean.shape)}, but the variance is {got}. Return (mean, variance) "
            "or (mean, variance, state), or use read= to make one of these. Is the second one a state? "
            "read=lambda output: (output[0], None, output[1])."
        )
    if (variance < 0).any():
        raise ValueError(
            f"a variance is {variance.min().item():g}; return the variance, not its logarithm or a state."
        )
