"""The pruning of a run: perplexity by share of weights dropped, and the exported small model."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from bayesrnn.compact import Storage
from bayesrnn.evaluation import pruning_study
from bayesrnn.evaluation.pruning_study import Prunable, PruningStudy
from bayesrnn.methods import Method
from bayesrnn.posterior import Posterior
from bayesrnn.report.table import text_table
from bayesrnn.tasks.language.comparison import check_same_text
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.exported import Exported
from bayesrnn.tasks.language.models.shrink import Shrunk, shrink
from bayesrnn.tasks.language.models.word_lm import WordLM
from bayesrnn.tasks.language.trained import TrainedModel
from bayesrnn.training.experiment import Progress

TIMED_WORDS, TIMED_ROUNDS = 8000, 5


def study_pruning(
    trained: TrainedModel,
    *,
    drop: float = 0.8,
    max_loss: float | None = None,
    per_tensor: bool = False,
    baseline: TrainedModel | None = None,
    split: str = "valid",
    data: str | None = None,
    streams: int = 20,
    words: int = 0,
    progress: Progress = lambda what: None,
) -> PruningStudy:
    """Prune by signal to noise, and for comparison the same model and a baseline by magnitude.

    `max_loss` is the largest allowed relative rise in perplexity, from which the share is found.
    `words` is the number of words to measure on, 0 for all.
    """
    posterior_of(trained)  # reject a run without one before any text is read
    models = [trained] if baseline is None else [trained, baseline]
    check_same_text(models, (split,), data)
    model, *others = (_prunable(each, split, data, streams, words) for each in models)
    return pruning_study.study_pruning(
        model,
        split=split,
        measured="perplexity",
        drop=drop,
        max_loss=max_loss,
        per_tensor=per_tensor,
        baseline=others[0] if others else None,
        progress=progress,
    )


def posterior_of(trained: TrainedModel) -> Posterior:
    """The posterior of a model that has one."""
    return pruning_study.posterior_of(trained.method, trained.config.method, trained.path)


def _prunable(
    trained: TrainedModel, split: str, data: str | None, streams: int, words: int
) -> Prunable:
    method, tokens = trained.method, trained.tokens(split, data)
    if words:
        tokens = tokens[: words + 1]
    return Prunable(
        trained.name,
        trained.path,
        trained.config.method,
        method,
        {name: weight for name, weight in method.weights().items() if name != "out.bias"},
        lambda: perplexity(method, tokens, streams=streams).value,
    )


@dataclass(frozen=True)
class Size:
    """The size, speed and perplexity of one form of a model."""

    form: str
    bytes: int
    words_per_second: float
    perplexity: float

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Export:
    """An exported model: the units removed, and its size compared with that of the run."""

    file: Exported
    shrunk: Shrunk | None
    """None for a posterior, whose units all stay."""
    sizes: tuple[Size, ...]

    def as_json(self) -> dict[str, Any]:
        units = self.shrunk
        removed = {} if units is None else {"embedding": units.embedding, "hidden": units.hidden}
        return {**removed, "sizes": [size.as_json() for size in self.sizes]}

    def text(self) -> str:
        units = self.shrunk
        if units is None:
            return render_sizes(self.sizes)
        left = (
            f"units left: {units.hidden[1]} of {units.hidden[0]} a layer, "
            f"{units.embedding[1]} of {units.embedding[0]} of the embedding"
        )
        return f"{left}\n{render_sizes(self.sizes)}"


def export(
    study: PruningStudy,
    trained: TrainedModel,
    path: Path,
    storage: Storage,
    *,
    posterior: bool = False,
    tokens: Tensor,
    streams: int = 20,
) -> Export:
    """Write the pruned model to one small file, and compare it with its run.

    With `posterior`, the file has the pruned means and sigma; otherwise the pruned mean weights, without
    the units that they leave unused.
    """
    method, run = trained.method, trained.run
    assert run is not None
    about = trained.config, trained.vocabulary, storage
    shrunk = None
    if posterior:
        kept = study.order.kept(study.drop)
        exported = Exported.write_posterior(path, posterior_of(trained), kept, *about)
    else:
        assert isinstance(method.model, WordLM)
        with study.order.dropped(study.drop):
            shrunk = shrink(method.model)
            exported = Exported.write(path, shrunk.model, *about)
    small = exported.load_method()
    dense = sum(weight.numel() * weight.element_size() for weight in method.weights().values())
    speed_before, speed_after = _words_per_second([method, small], tokens, streams)
    before = perplexity(method, tokens, streams=streams).value
    after = perplexity(small, tokens, streams=streams).value
    return Export(
        exported,
        shrunk,
        (
            Size("posterior, mean and sigma", run.weights.stat().st_size, speed_before, before),
            Size("mean alone, float32", dense, speed_before, before),
            Size(f"{study.drop:.1%} dropped, {storage}", path.stat().st_size, speed_after, after),
        ),
    )


def render_sizes(sizes: tuple[Size, ...]) -> str:
    headings = ["model", "bytes", "of the mean", "words/s", "perplexity"]
    whole = sizes[1].bytes
    rows = [
        [
            size.form,
            f"{size.bytes:,}",
            f"{size.bytes / whole:.1%}",
            f"{size.words_per_second:,.0f}",
            f"{size.perplexity:.2f}",
        ]
        for size in sizes
    ]
    return text_table(headings, rows)


def _words_per_second(methods: list[Method], tokens: Tensor, streams: int) -> list[float]:
    """The speed of scoring text; methods take turns, so that other load affects all of them."""
    tokens = tokens[: TIMED_WORDS + 1]
    seconds: list[list[float]] = [[] for _ in methods]
    for _ in range(TIMED_ROUNDS):
        for method, times in zip(methods, seconds, strict=True):
            begin = time.perf_counter()
            perplexity(method, tokens, streams=streams)
            times.append(time.perf_counter() - begin)
    return [(len(tokens) - 1) / median(times) for times in seconds]
