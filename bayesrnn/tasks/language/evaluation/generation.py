"""Text generation: each word is sampled from the model's predictive distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator

from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.ensemble import LogMeanExp, evaluating, log_softmax
from bayesrnn.methods import Method


@torch.no_grad()
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
) -> list[str]:
    """Generate `words` words after the prompt, with the mean weights or one sample; never `<unk>`."""
    if temperature <= 0:
        raise ValueError(f"temperature = {temperature} must be above 0.")
    if top_k < 0 or words < 1:
        raise ValueError(f"top-k = {top_k} must be 0 or more, and words = {words} at least 1.")
    members = method.members(1, seed) if sample_weights else method.resting()
    generator = Generator().manual_seed(seed)
    tokens = torch.tensor([vocabulary.end, *vocabulary.encode(prompt)])
    written: list[str] = []
    states: list[Any] = [None] * len(members)
    with evaluating(method.model):
        while len(written) < words:
            average = LogMeanExp()
            for index, member in enumerate(members):
                with member():
                    logits, states[index] = method.model(tokens[:, None], states[index])
                average.add(log_softmax(logits[-1, 0]))
            scores = average.value / temperature
            scores[vocabulary.unknown] = -torch.inf
            if 0 < top_k < len(scores):
                scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
            tokens = torch.multinomial(scores.softmax(-1), 1, generator=generator)
            written.append(vocabulary.words[int(tokens)])
    return written
