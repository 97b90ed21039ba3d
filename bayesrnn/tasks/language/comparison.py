"""The paper's Table 1 for a set of runs, with speed and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from bayesrnn.data.mapped import was_read
from bayesrnn.tasks.language.evaluation.perplexity import DYNAMIC_STEPS, perplexity
from bayesrnn.tasks.language.evaluation.scoring import Adaptation
from bayesrnn.tasks.language.trained import TOKENS_AT_ONCE, TrainedModel
from bayesrnn.training.experiment import Comparison, Progress


@dataclass(frozen=True)
class Row:
    """One run's results: perplexities at its best epoch, without sampling unless said otherwise."""

    run: str
    method: str
    preset: str
    weights: int
    trained: int
    """Number of trained parameters: a posterior has two for each weight."""
    epochs: int
    words_per_second: float | None
    train_at_end: float | None
    """Training perplexity of the last epoch, at the weights trained with."""
    valid_at_end: float | None
    """Validation perplexity after the last epoch; above `valid` if the run overfitted."""
    results: dict[str, float | None]
    """valid, test, and if requested valid_samples, valid_bound, valid_dynamic, ..."""

    def as_json(self) -> dict:
        values = asdict(self)
        return {**values, **values.pop("results")}


def compare(
    models: Sequence[TrainedModel],
    *,
    data: str | None = None,
    samples: int = 0,
    adaptation: Callable[[TrainedModel], Adaptation] | None = None,
    streams: int = 1,
    progress: Progress = lambda what: None,
) -> list[Row]:
    """Evaluate each model on the validation and test splits of its data, as `bayesrnn evaluate` does."""
    check_same_text(models, ("valid", "test"), data)
    adaptations = [adaptation(model) if adaptation else None for model in models]
    rows = []
    for model, dynamic in zip(models, adaptations, strict=True):
        ways = _ways(model, samples, dynamic, streams)
        results: dict[str, float | None] = {}
        for split in ("valid", "test"):
            tokens = model.tokens(split, data)
            for suffix, options in ways.items():
                progress(f"{model.name}: {split}{suffix.replace('_', ' ')}")
                results[split + suffix] = perplexity(model.method, tokens, **options).value
        rows.append(_row(model, results))
    return rows


def check_same_text(
    models: Sequence[TrainedModel], splits: Sequence[str], data: str | None = None
) -> None:
    """Raise ValueError unless the models have one vocabulary, and one text in these splits.

    Perplexities of different texts cannot be compared. Nor can those of one text with different vocabularies:
    the smaller one is, the more words are `<unk>`, which is easy to predict.
    """
    if not models:
        return
    first, *others = models
    for other in others:
        if set(first.vocabulary.words) != set(other.vocabulary.words):
            raise ValueError(
                f"{_described(first)} and {_described(other)} have different vocabularies, so that <unk> "
                "stands for other words in each and no figures of theirs can be compared; give one at a time."
            )
        for split in splits:
            if not _same_words(first, other, split, data):
                raise ValueError(
                    f"{first.name} and {other.name} were trained on different text ({first.config.data} and "
                    f"{other.config.data}: the {split} split differs); give --data to use one text for both."
                )


def _described(model: TrainedModel) -> str:
    return f"{model.name} (text {model.config.data}, {len(model.vocabulary):,} words)"


def _same_words(first: TrainedModel, other: TrainedModel, split: str, data: str | None) -> bool:
    """Whether a split has the same words for two models, whose vocabularies differ at most in order."""
    own, theirs = first.tokens(split, data), other.tokens(split, data)
    if own is theirs or len(own) != len(theirs):
        return own is theirs
    renumbered = torch.tensor(first.vocabulary.encode(other.vocabulary.words), dtype=own.dtype)
    for mine, other_part in zip(
        own.split(TOKENS_AT_ONCE), theirs.split(TOKENS_AT_ONCE), strict=True
    ):
        if not torch.equal(mine, renumbered[other_part.long()]):
            return False
        was_read(own, len(mine))
        was_read(theirs, len(mine))
    return True


def _ways(
    model: TrainedModel, samples: int, dynamic: Adaptation | None, streams: int
) -> dict[str, dict[str, Any]]:
    """Each requested and possible way of predicting: its suffix, and the arguments for `perplexity`."""
    config, method = model.config, model.method
    ways: dict[str, dict[str, Any]] = {"": {"streams": streams}}
    if samples and method.available([samples]):
        ways["_samples"] = {"samples": samples, "streams": streams}
    if method.sharpened is not None:
        ways["_bound"] = {"sharpened": True, "streams": config.batch_size, "steps": config.unroll}
    if dynamic is not None:
        adapting = {"dynamic": dynamic, "streams": 1, "steps": DYNAMIC_STEPS}
        ways["_dynamic"] = adapting
        if "_bound" in ways:
            ways["_bound_dynamic"] = {"sharpened": True, **adapting}
    return ways


def _row(model: TrainedModel, results: dict[str, float | None]) -> Row:
    assert model.run is not None
    epochs, timing = model.run.read_metrics("epoch"), model.run.read_timing()
    speeds = [line["words"] / line["seconds"] for line in timing if line["seconds"] > 0]
    return Row(
        run=model.name,
        method=model.config.method,
        preset=model.config.preset,
        weights=sum(weight.numel() for weight in model.method.weights().values()),
        trained=sum(parameter.numel() for parameter in model.method.parameters()),
        epochs=len(epochs),
        words_per_second=median(speeds) if speeds else None,
        train_at_end=epochs[-1]["train_perplexity"] if epochs else None,
        valid_at_end=epochs[-1]["valid_perplexity"] if epochs else None,
        results=results,
    )


def comparison(rows: Sequence[Row]) -> Comparison:
    """The rows as a table, without columns that are empty for all runs."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("run", lambda r: r.run),
        ("method", lambda r: r.method),
        ("weights", lambda r: f"{r.weights:,}"),
        ("trained", lambda r: f"{r.trained:,}"),
        ("words/s", lambda r: "-" if r.words_per_second is None else f"{r.words_per_second:,.0f}"),
        ("epochs", lambda r: str(r.epochs)),
        ("train, end", lambda r: _number(r.train_at_end)),
        ("val, end", lambda r: _number(r.valid_at_end)),
    ]
    for suffix, heading in _HEADINGS.items():
        for split, short in [("valid", "val"), ("test", "test")]:
            name, sign = split + suffix, "<= " if "bound" in suffix else ""
            if any(name in row.results for row in rows):
                columns.append(
                    (f"{short}{heading}", lambda r, n=name, s=sign: _number(r.results.get(n), s))
                )
    return Comparison(
        headings=[name for name, _ in columns],
        cells=[[cell(row) for _, cell in columns] for row in rows],
        rows=[row.as_json() for row in rows],
    )


_HEADINGS = {
    "": "",
    "_samples": " MC",
    "_bound": " sharpened",
    "_dynamic": " DE",
    "_bound_dynamic": " sharpened DE",
}


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{sign}{value:.1f}"
