"""The paper's Table 1 for a set of runs, with speed and size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bayesrnn.data.corpus import load_split
from bayesrnn.data.sources import find_source
from bayesrnn.evaluation.perplexity import DYNAMIC_STEPS, perplexity
from bayesrnn.methods import Learner, SharpenedLearner
from bayesrnn.report.table import markdown_table, text_table
from bayesrnn.report.texts import name_of
from bayesrnn.training.run import Run


@dataclass(frozen=True)
class Row:
    """One run's results; perplexities of the weights at rest, of the best epoch, unless said otherwise."""

    run: str
    method: str
    preset: str
    weights: int
    trained: int
    """Numbers that were trained: a posterior has two for each weight."""
    epochs: int
    words_per_second: float | None
    train_at_end: float | None
    """As measured while training, in the last epoch."""
    valid_at_end: float | None
    """After the last epoch: where it is above `valid`, the run has overfitted."""
    results: dict[str, float | None]
    """valid, test, and where asked for valid_samples, valid_bound, valid_dynamic, ..."""

    def as_json(self) -> dict:
        values = asdict(self)
        return {**values, **values.pop("results")}


def compare(
    runs: list[Run],
    *,
    data: str | None,
    cache: Path,
    samples: int,
    dynamic: bool,
    lr: float,
    streams: int = 1,
    progress: Callable[[str], None],
) -> list[Row]:
    """Evaluate each run on the validation and test split of its data, as `evaluate` does."""
    dynamic_lr = lr if dynamic else None
    return [_row(run, data, cache, samples, dynamic_lr, streams, progress) for run in runs]


def _row(
    run: Run,
    data: str | None,
    cache: Path,
    samples: int,
    dynamic_lr: float | None,
    streams: int,
    progress: Callable[[str], None],
) -> Row:
    config, learner = run.config, run.load_learner()
    source = find_source(data or config.data, cache)
    ways: dict[str, dict] = {"": {"streams": streams}}
    if samples and _can_be_sampled(learner, samples):
        ways["_samples"] = {"samples": samples, "streams": streams}
    if isinstance(learner, SharpenedLearner):
        ways["_bound"] = {"sharpened": True, "streams": config.batch_size, "steps": config.unroll}
    if dynamic_lr is not None:
        adapting = {
            "dynamic_lr": dynamic_lr,
            "clip": config.clip,
            "streams": 1,
            "steps": DYNAMIC_STEPS,
        }
        ways["_dynamic"] = adapting
        if "_bound" in ways:
            ways["_bound_dynamic"] = {"sharpened": True, **adapting}
    results: dict[str, float | None] = {}
    for split in ("valid", "test"):
        tokens = load_split(source, split, run.vocabulary, cache)
        for suffix, options in ways.items():
            progress(f"{name_of(run)}: {split}{suffix.replace('_', ' ')}")
            results[split + suffix] = perplexity(learner, tokens, **options).value
    epochs = run.read_metrics("epoch")
    speeds = [line["words"] / line["seconds"] for line in run.read_timing() if line["seconds"] > 0]
    return Row(
        run=name_of(run),
        method=config.method,
        preset=config.preset,
        weights=sum(p.numel() for p in learner.model.parameters()),
        trained=sum(p.numel() for p in learner.parameters()),
        epochs=len(epochs),
        words_per_second=median(speeds) if speeds else None,
        train_at_end=epochs[-1]["train_perplexity"] if epochs else None,
        valid_at_end=epochs[-1]["valid_perplexity"] if epochs else None,
        results=results,
    )


def _can_be_sampled(learner: Learner, samples: int) -> bool:
    try:
        return bool(learner.members(samples, 0))
    except ValueError:
        return False


def render(rows: list[Row], *, markdown: bool = False) -> str:
    """The table as text."""
    return (markdown_table if markdown else text_table)(*table_of(rows))


def table_of(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, with only the columns that some run has."""
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
    return [name for name, _ in columns], [[cell(row) for _, cell in columns] for row in rows]


_HEADINGS = {
    "": "",
    "_samples": " MC",
    "_bound": " sharpened",
    "_dynamic": " DE",
    "_bound_dynamic": " sharpened DE",
}


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{sign}{value:.1f}"
