"""The calibration of a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesrnn.evaluation.calibration import Calibration, summarise
from bayesrnn.tasks.language.evaluation.beliefs import LanguageModel, beliefs


def calibration(
    models: Sequence[LanguageModel],
    tokens: Tensor,
    vocabulary: int,
    *,
    streams: int = 20,
    progress: Callable[[int], None] = lambda words: None,
) -> Calibration:
    """The calibration of the average of `models` on a text; the first token is context only."""
    columns: list[Tensor] = []
    for segment, found in beliefs(models, tokens, vocabulary, streams=streams):
        belief = found[len(models)]
        values = (belief.confidence, belief.correct.float(), -belief.log_prob, belief.brier)
        columns.append(torch.stack([value[segment.counted] for value in values]))
        progress(int(segment.counted.sum()))
    confidence, correct, nats, brier = torch.cat(columns, 1)
    return summarise(confidence, correct, nats, brier)
