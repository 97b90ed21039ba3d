"""The pruning of a run: perplexity by share of weights dropped, and the exported small model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from torch import Tensor

from bayesrnn.compact import Storage
from bayesrnn.evaluation.pruning import DROPS, curve, largest_drop
from bayesrnn.methods import Method
from bayesrnn.posterior import Posterior
from bayesrnn.pruning import DropOrder, by_magnitude, by_signal_to_noise
from bayesrnn.report.table import text_table
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.exported import Exported
from bayesrnn.tasks.language.models.shrink import Shrunk, shrink
from bayesrnn.tasks.language.models.word_lm import WordLM
from bayesrnn.tasks.language.trained import TrainedModel
from bayesrnn.training.experiment import Progress

SIGNAL_TO_NOISE, MAGNITUDE = "signal to noise", "magnitude"
TIMED_WORDS, TIMED_ROUNDS = 8000, 5


@dataclass(frozen=True)
class PruningStudy:
    """Perplexity by share of weights dropped, for each order of dropping, and the chosen share."""

    run: str
    split: str
    curves: dict[str, dict[float, float]]
    drop: float
    perplexity: float
    """Perplexity with that share dropped by signal to noise."""
    order: DropOrder

    def as_json(self) -> dict:
        curves = {
            name: [{"drop": d, "perplexity": p} for d, p in points.items()]
            for name, points in self.curves.items()
        }
        return {
            "run": self.run,
            "split": self.split,
            "drop": self.drop,
            "perplexity": self.perplexity,
            "curves": curves,
        }


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
    progress: Progress = lambda what: None,
) -> PruningStudy:
    """Prune by signal to noise, and for comparison the same model and a baseline by magnitude.

    `max_loss` is the largest allowed relative rise in perplexity, from which the share is found.
    """
    posterior = posterior_of(trained)
    order = by_signal_to_noise(posterior, per_tensor=per_tensor)
    order.kept(drop)  # reject an invalid share before any work
    weights = trained.method.weights()
    bayesian = {slot.name: weights[slot.name] for slot in posterior.layout}
    pruned: dict[str, tuple[DropOrder, TrainedModel]] = {
        SIGNAL_TO_NOISE: (order, trained),
        MAGNITUDE: (by_magnitude(bayesian, per_tensor=per_tensor), trained),
    }
    if baseline is not None:
        pruned[f"{MAGNITUDE}, {baseline.name}"] = (_baseline_order(baseline, per_tensor), baseline)
    measures = {
        name: _measure(model.method, model.tokens(split, data), streams)
        for name, (_, model) in pruned.items()
    }
    curves = {
        name: curve(
            its_order,
            measures[name],
            DROPS,
            lambda drop, name=name: progress(f"{name}, {drop:.1%} dropped"),
        )
        for name, (its_order, _) in pruned.items()
    }
    points, measure = curves[SIGNAL_TO_NOISE], measures[SIGNAL_TO_NOISE]
    if max_loss is not None:
        progress("the largest share within the limit")
        drop = largest_drop(order, measure, points, points[0.0] * (1 + max_loss))
    with order.dropped(drop):
        at_drop = measure()
    return PruningStudy(trained.name, split, curves, drop, at_drop, order)


def posterior_of(trained: TrainedModel) -> Posterior:
    """The posterior of a model that has one."""
    if trained.method.posterior is None:
        raise ValueError(
            f"{trained.path} is a run of method {trained.config.method}, which has no posterior to prune by; "
            "use one of method bbb or sharpened."
        )
    return trained.method.posterior


def _baseline_order(baseline: TrainedModel, per_tensor: bool) -> DropOrder:
    method = baseline.method
    if method.resting() != [nullcontext]:
        raise ValueError(
            f"{baseline.path} predicts with samples of its weights, which cannot be pruned as one; "
            "use a baseline of another method."
        )
    weights = {name: weight for name, weight in method.weights().items() if name != "out.bias"}
    return by_magnitude(weights, per_tensor=per_tensor)


def render_curves(study: PruningStudy) -> str:
    headings = ["dropped", *study.curves]
    rows = [
        [f"{drop:.1%}", *(f"{points[drop]:.2f}" for points in study.curves.values())]
        for drop in DROPS
    ]
    return text_table(headings, rows)


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
    shrunk: Shrunk
    sizes: tuple[Size, ...]


def export(
    study: PruningStudy,
    trained: TrainedModel,
    path: Path,
    storage: Storage,
    *,
    tokens: Tensor,
    streams: int = 20,
) -> Export:
    """Write the pruned model to one small file, and compare it with its run."""
    method, run = trained.method, trained.run
    assert isinstance(method.model, WordLM)
    assert run is not None
    with study.order.dropped(study.drop):
        shrunk = shrink(method.model)
        exported = Exported.write(path, shrunk.model, trained.config, trained.vocabulary, storage)
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


def _measure(method: Method, tokens: Tensor, streams: int) -> Callable[[], float]:
    return lambda: perplexity(method, tokens, streams=streams).value


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
