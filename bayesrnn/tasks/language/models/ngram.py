"""An n-gram language model with absolute discounting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

DISCOUNT = 0.75


class NGram:
    """p(w | c) = max(n(c, w) - D, 0) / n(c) + D k(c) / n(c) p(w | c without its first word).

    n counts occurrences in the training text, and k(c) is the number of different words seen after c. The
    empty context backs off to the uniform distribution.
    """

    def __init__(self, tokens: Tensor, vocabulary: int, order: int = 3) -> None:
        """Count the n-grams of a text, whose first token is context only, for n up to `order`."""
        if order < 1:
            raise ValueError(f"order = {order} must be at least 1.")
        self.vocabulary = vocabulary
        self.order = order
        self.followers: dict[tuple[int, ...], tuple[Tensor, Tensor, float]] = {}
        words = tokens.tolist()
        for length in range(order):
            counts: dict[tuple[int, ...], Counter[int]] = {}
            for end in range(max(length, 1), len(words)):
                counts.setdefault(tuple(words[end - length : end]), Counter())[words[end]] += 1
            for context, seen in counts.items():
                total = sum(seen.values())
                share = (
                    torch.tensor(list(seen.values()), dtype=torch.float32).sub_(DISCOUNT) / total
                )
                next_words = torch.tensor(list(seen))
                self.followers[context] = (next_words, share, DISCOUNT * len(seen) / total)

    def next_word_log_probs(self, tokens: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """Tokens (T, N) -> log p of each next word (T, N, V); the state is the last words read."""
        history = tokens if state is None else torch.cat([state, tokens])
        skip = len(history) - len(tokens)
        streams = history.T.tolist()
        rows = [
            self._probs(words[max(0, t + skip + 2 - self.order) : t + skip + 1])
            for t in range(len(tokens))
            for words in streams
        ]
        log_probs = torch.stack(rows).log().view(*tokens.shape, self.vocabulary)
        return log_probs, history[max(0, len(history) - self.order + 1) :]

    def _probs(self, context: list[int]) -> Tensor:
        probs = torch.full((self.vocabulary,), 1 / self.vocabulary)
        for length in range(len(context) + 1):
            found = self.followers.get(tuple(context[len(context) - length :]))
            if found is None:
                break
            next_words, share, backoff = found
            probs.mul_(backoff)
            probs[next_words] += share
        return probs
