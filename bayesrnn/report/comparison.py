"""The paper's Table 1 for a set of runs, with speed and size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from bayesrnn.data.corpus import load_split
from bayesrnn.data.sources import find_source
from bayesrnn.evaluation.perplexity import perplexity
from bayesrnn.methods import SharpenedLearner
from bayesrnn.report.table import markdown_table, text_table
from bayesrnn.training.run import Run

STREAMS = 10


@dataclass(frozen=True)
class Row:
    """One run's results; perplexities of the weights at rest unless said otherwise."""

    run: str
    method: str
    preset: str
    weights: int
    trained: int
    """Numbers that were trained: a posterior has two for each weight."""
    epochs: int
    words_per_second: float | None
    valid: float
    test: float
    valid_bound: float | None = None
    """With the sharpened posterior: an upper bound."""
    test_bound: float | None = None
    valid_dynamic: float | None = None
    test_dynamic: float | None = None

    def as_json(self) -> dict:
        return asdict(self)


def compare(
    runs: list[Run],
    *,
    data: str | None,
    cache,
    dynamic: bool,
    lr: float,
    progress: Callable[[str], None],
) -> list[Row]:
    """Evaluate each run on the validation and test split of its data."""
    rows = []
    for run in runs:
        learner = run.load_learner()
        source = find_source(data or run.config.data, cache)
        results: dict[str, float | None] = {}
        for split in ("valid", "test"):
            progress(f"{run.folder.name}: {split}")
            tokens = load_split(source, split, run.vocabulary, cache)
            results[split] = perplexity(learner, tokens, streams=STREAMS).value
            if isinstance(learner, SharpenedLearner):
                results[f"{split}_bound"] = perplexity(
                    learner,
                    tokens,
                    sharpened=True,
                    streams=run.config.batch_size,
                    steps=run.config.unroll,
                ).value
            if dynamic:
                progress(f"{run.folder.name}: {split}, dynamic evaluation")
                results[f"{split}_dynamic"] = perplexity(
                    learner, tokens, dynamic_lr=lr, clip=run.config.clip
                ).value
        timing = run.read_timing()
        speeds = [line["words"] / line["seconds"] for line in timing if line["seconds"] > 0]
        rows.append(
            Row(
                run=run.folder.name,
                method=run.config.method,
                preset=run.config.preset,
                weights=sum(p.numel() for p in learner.model.parameters()),
                trained=sum(p.numel() for p in learner.parameters()),
                epochs=len(run.read_metrics("epoch")),
                words_per_second=median(speeds) if speeds else None,
                **results,  # type: ignore[arg-type]
            )
        )
    return rows


def render(rows: list[Row], *, markdown: bool = False) -> str:
    """The table, with only the columns that some run has."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("run", lambda r: r.run),
        ("method", lambda r: r.method),
        ("weights", lambda r: f"{r.weights:,}"),
        ("trained", lambda r: f"{r.trained:,}"),
        ("epochs", lambda r: str(r.epochs)),
        ("words/s", lambda r: "-" if r.words_per_second is None else f"{r.words_per_second:,.0f}"),
        ("val", lambda r: f"{r.valid:.1f}"),
        ("test", lambda r: f"{r.test:.1f}"),
    ]
    if any(row.valid_bound is not None for row in rows):
        columns.append(("val sharpened", lambda r: _bound(r.valid_bound)))
        columns.append(("test sharpened", lambda r: _bound(r.test_bound)))
    if any(row.valid_dynamic is not None for row in rows):
        columns.append(("val DE", lambda r: _number(r.valid_dynamic)))
        columns.append(("test DE", lambda r: _number(r.test_dynamic)))
    headings = [name for name, _ in columns]
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return (markdown_table if markdown else text_table)(headings, cells)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _bound(value: float | None) -> str:
    return "-" if value is None else f"<= {value:.1f}"
