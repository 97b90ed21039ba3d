"""Caption runs in a table: perplexity and scores, speed and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bayesrnn.tasks.captions.quality import Quality, measure, percent
from bayesrnn.tasks.captions.trained import TrainedCaptioner, check_same_images, same_words
from bayesrnn.training.experiment import Comparison, Progress

BEAM = 3


@dataclass(frozen=True)
class Row:
    """One run's results at its best epoch, on the test split unless said otherwise."""

    run: str
    method: str
    weights: int
    epochs: int
    words_per_second: float | None
    valid_perplexity: float | None
    """Of the best epoch, as training measured it."""
    quality: Quality
    """Without sampling."""
    sampled: Quality | None
    """Averaged over weight samples, if asked for and possible."""
    same_words: bool = True
    """Whether its vocabulary is that of the first run; otherwise their perplexities do not compare."""

    def as_json(self) -> dict[str, Any]:
        sampled = None if self.sampled is None else self.sampled.as_json()
        plain = {k: v for k, v in asdict(self).items() if k not in ("quality", "sampled")}
        return {**plain, "test": self.quality.as_json(), "test_samples": sampled}


def compare(
    models: Sequence[TrainedCaptioner],
    *,
    samples: int = 0,
    beam: int = BEAM,
    seed: int = 0,
    progress: Progress = lambda what: None,
) -> list[Row]:
    """Evaluate each run on the test split, without sampling and with."""
    check_same_images(models)
    rows = []
    for model in models:
        split = model.split("test")
        progress(f"{model.name}: test")
        quality = measure(model, split, beam=beam, meteor=False)
        sampled = None
        if samples and model.method.available([samples]):
            progress(f"{model.name}: test, {samples} samples")
            sampled = measure(model, split, samples=samples, beam=beam, seed=seed, meteor=False)
        rows.append(_row(model, quality, sampled, same_words(models[0], model)))
    return rows


def _row(
    model: TrainedCaptioner, quality: Quality, sampled: Quality | None, same_words: bool
) -> Row:
    epochs, timing = model.run.read_metrics("epoch"), model.run.read_timing()
    speeds = [line["words"] / line["seconds"] for line in timing if line["seconds"] > 0]
    return Row(
        run=model.name,
        method=model.config.method,
        weights=sum(weight.numel() for weight in model.method.weights().values()),
        epochs=len(epochs),
        words_per_second=median(speeds) if speeds else None,
        valid_perplexity=min((line["valid_perplexity"] for line in epochs), default=None),
        quality=quality,
        sampled=sampled,
        same_words=same_words,
    )


def comparison(rows: Sequence[Row], notes: Sequence[str] = ()) -> Comparison:
    """The rows as a table; BLEU and CIDEr times 100. Columns of samples only if some run has them."""
    sampled = any(row.sampled is not None for row in rows)
    headings = ["run", "method", "weights", "words/s", "epochs", "val", "test", "BLEU-4", "CIDEr"]
    headings += ["test MC", "BLEU-4 MC", "CIDEr MC"] if sampled else []
    cells = [
        [
            row.run,
            row.method,
            f"{row.weights:,}",
            "-" if row.words_per_second is None else f"{row.words_per_second:,.0f}",
            str(row.epochs),
            _perplexity(row.valid_perplexity, row),
            *_cells(row.quality, row),
            *(_cells(row.sampled, row) if sampled else []),
        ]
        for row in rows
    ]
    if not all(row.same_words for row in rows):
        notes = [*notes, OTHER_WORDS.format(run=rows[0].run)]
    return Comparison(headings, cells, [row.as_json() for row in rows], notes)


OTHER_WORDS = (
    "*: a perplexity with another vocabulary than {run}, not to be compared; BLEU and CIDEr are."
)


def _cells(quality: Quality | None, row: Row) -> list[str]:
    if quality is None:
        return ["-", "-", "-"]
    scores = quality.scores
    shown = [None, None] if scores is None else [scores.bleu[3], scores.cider]
    return [_perplexity(quality.perplexity, row), *map(percent, shown)]


def _perplexity(value: float | None, row: Row) -> str:
    return "-" if value is None else f"{value:.2f}" + ("" if row.same_words else "*")
