"""Text generation: each word is sampled from the model's predictive distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.devices import device_of
from bayesrnn.ensemble import LogMeanExp, evaluating, log_softmax
from bayesrnn.methods import Member, Method


def generate(
    method: Method,
    vocabulary: Vocabulary,
    prompt: list[str],
    *,
    words: int,
    temperature: float = 1.0,
    top_k: int = 0,
    sample_weights: bool = False,
    seed: int = 0,
) -> Iterator[str]:
    """Generate `words` words after the prompt, with the mean weights or one sample; never `<unk>`.

    They are yielded one by one, as they are sampled.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature = {temperature} must be above 0, and finite.")
    if top_k < 0 or words < 1:
        raise ValueError(f"top-k = {top_k} must be 0 or more, and words = {words} at least 1.")
    members = method.members(1, seed) if sample_weights else method.resting()
    start = torch.tensor([vocabulary.end, *vocabulary.encode(prompt)])
    return _sampled(method, vocabulary, start, members, words, temperature, top_k, seed)


@torch.no_grad()
def _sampled(
    method: Method,
    vocabulary: Vocabulary,
    tokens: Tensor,
    members: Sequence[Member],
    words: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> Iterator[str]:
    generator = Generator().manual_seed(seed)
    states: list[Any] = [None] * len(members)
    with evaluating(method.model):
        for _ in range(words):
            average = LogMeanExp()
            for index, member in enumerate(members):
                with member():
                    inputs = tokens[:, None].to(device_of(method.model))
                    logits, states[index] = method.model(inputs, states[index])
                average.add(log_softmax(logits[-1, 0]).cpu())
            scores = average.value
            scores[vocabulary.unknown] = -torch.inf
            scores = (scores - scores.max()) / max(temperature, 1e-30)  # the likeliest at 0
            if scores.isnan().any():
                raise ValueError("the model predicts nan: its weights are damaged or diverged.")
            if 0 < top_k < len(scores):
                scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
            tokens = torch.multinomial(scores.softmax(-1), 1, generator=generator)
            yield vocabulary.words[int(tokens)]
