"""Caption runs judged by the words of the true captions: their calibration, and how they can be pruned."""

from __future__ import annotations

from collections.abc import Sequence

from bayesrnn.evaluation.calibration import summarise
from bayesrnn.evaluation.pruning_study import Prunable
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.tasks.captions.trained import (
    TrainedCaptioner,
    check_same_images,
    check_same_words,
)


def check_comparable(models: Sequence[TrainedCaptioner], split: str) -> None:
    """Raise ValueError unless the models are judged by the same captions, and know the same words."""
    check_same_images(models, split)
    check_same_words(models)


def calibration_of(
    model: TrainedCaptioner, samples: int, *, split: str = "test", seed: int = 0
) -> list[CalibrationRow]:
    """The calibration of a model without sampling, and averaged over `samples` if possible."""
    captions = model.encoded(model.split(split))
    found = []
    for count in [0, *(model.method.available([samples]) if samples else [])]:
        words = model.beliefs(captions, model.members(count, seed)).words
        summary = summarise(words.confidence, words.correct.float(), -words.log_prob, words.brier)
        found.append(CalibrationRow(model.name, count, summary))
    return found


def prunable(model: TrainedCaptioner, split: str) -> Prunable:
    """The run as a model to prune, measured by the perplexity of the captions of a split."""
    method, captions = model.method, model.encoded(model.split(split))
    return Prunable(
        model.name,
        model.run.folder,
        model.config.method,
        method,
        {name: weight for name, weight in method.weights().items() if name != "out.bias"},
        lambda: model.beliefs(captions, method.resting()).perplexity,
    )
