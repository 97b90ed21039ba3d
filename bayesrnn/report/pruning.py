"""How far a run can be pruned, and the small model that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from torch import Tensor

from bayesrnn.compact import Storage
from bayesrnn.evaluation.perplexity import perplexity
from bayesrnn.evaluation.pruning import DROPS, curve, largest_drop
from bayesrnn.methods import LangevinLearner, Learner, PosteriorLearner
from bayesrnn.models.shrink import Shrunk, shrink
from bayesrnn.models.word_lm import WordLM
from bayesrnn.pruning import DropOrder, by_magnitude, by_signal_to_noise
from bayesrnn.report.table import text_table
from bayesrnn.report.texts import name_of, tokens_of
from bayesrnn.training.exported import Exported
from bayesrnn.training.run import Run

SIGNAL_TO_NOISE, MAGNITUDE = "signal to noise", "magnitude"
TIMED_WORDS, TIMED_ROUNDS = 8000, 5


@dataclass(frozen=True)
class PruningStudy:
    """Perplexity against the share of weights dropped, by each order, and the share that was chosen."""

    run: str
    split: str
    curves: dict[str, dict[float, float]]
    drop: float
    perplexity: float
    """With that share dropped by signal to noise."""
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


def posterior_learner(run: Run, learner: Learner) -> PosteriorLearner:
    """The learner of a run that has a posterior."""
    if not isinstance(learner, PosteriorLearner):
        raise ValueError(
            f"{run.folder} is a run of method {run.config.method}, which has no posterior to prune by; use "
            "one of method bbb or sharpened."
        )
    return learner


def study_pruning(
    run: Run,
    learner: PosteriorLearner,
    *,
    cache: Path,
    drop: float = 0.8,
    max_loss: float | None = None,
    per_tensor: bool = False,
    baseline: Run | None = None,
    split: str = "valid",
    data: str | None = None,
    streams: int = 20,
    progress: Callable[[str], None] = lambda what: None,
) -> PruningStudy:
    """Prune by signal to noise, beside the same model and a baseline by magnitude.

    `max_loss` is the share by which perplexity may rise; the drop is then found instead of given.
    """
    order = by_signal_to_noise(learner.posterior, per_tensor=per_tensor)
    order.kept(drop)  # complain before the work, not after
    names = [slot.name for slot in learner.posterior.layout]
    pruned: dict[str, tuple[DropOrder, Learner, Run]] = {
        SIGNAL_TO_NOISE: (order, learner, run),
        MAGNITUDE: (by_magnitude(learner.model, names, per_tensor=per_tensor), learner, run),
    }
    if baseline is not None:
        other = _baseline_learner(baseline)
        own = [name for name, _ in other.model.named_parameters() if name != "out.bias"]
        pruned[f"{MAGNITUDE}, {name_of(baseline)}"] = (
            by_magnitude(other.model, own, per_tensor=per_tensor),
            other,
            baseline,
        )
    texts = {name: tokens_of(its, split, data, cache) for name, (_, _, its) in pruned.items()}
    measure = _measure(learner, texts[SIGNAL_TO_NOISE], streams)
    curves = {
        name: curve(
            its_order,
            _measure(its_learner, texts[name], streams),
            DROPS,
            lambda drop, name=name: progress(f"{name}, {drop:.1%} dropped"),
        )
        for name, (its_order, its_learner, _) in pruned.items()
    }
    points = curves[SIGNAL_TO_NOISE]
    if max_loss is not None:
        progress("the largest share within the limit")
        drop = largest_drop(order, measure, points, points[0.0] * (1 + max_loss))
    with order.dropped(drop):
        at_drop = measure()
    return PruningStudy(name_of(run), split, curves, drop, at_drop, order)


def _baseline_learner(run: Run) -> Learner:
    learner = run.load_learner()
    if isinstance(learner, LangevinLearner):
        raise ValueError(
            f"{run.folder} predicts with several samples of its weights, which cannot be pruned as one; "
            "use a baseline of another method."
        )
    return learner


def render_curves(study: PruningStudy) -> str:
    headings = ["dropped", *study.curves]
    rows = [
        [f"{drop:.1%}", *(f"{points[drop]:.2f}" for points in study.curves.values())]
        for drop in DROPS
    ]
    return text_table(headings, rows)


@dataclass(frozen=True)
class Size:
    """One form of a model: what it takes, how fast it is and how good."""

    form: str
    bytes: int
    words_per_second: float
    perplexity: float

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Export:
    """An exported model, what was removed from it, and what it was measured against."""

    file: Exported
    shrunk: Shrunk
    sizes: tuple[Size, ...]


def export(
    study: PruningStudy,
    run: Run,
    learner: PosteriorLearner,
    path: Path,
    storage: Storage,
    *,
    tokens: Tensor,
    streams: int = 20,
) -> Export:
    """Write the pruned model to one small file, and measure it against the run it came from."""
    assert isinstance(learner.model, WordLM)
    with study.order.dropped(study.drop):
        shrunk = shrink(learner.model)
        exported = Exported.write(path, shrunk.model, run, storage)
    small = exported.load_learner()
    dense = sum(p.numel() * p.element_size() for p in learner.model.parameters())
    speed_before, speed_after = _words_per_second([learner, small], tokens, streams)
    before = perplexity(learner, tokens, streams=streams).value
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


def _measure(learner: Learner, tokens: Tensor, streams: int) -> Callable[[], float]:
    return lambda: perplexity(learner, tokens, streams=streams).value


def _words_per_second(learners: list[Learner], tokens: Tensor, streams: int) -> list[float]:
    """Of scoring text, in turns, so that what else the machine does falls on all alike."""
    tokens = tokens[: TIMED_WORDS + 1]
    seconds: list[list[float]] = [[] for _ in learners]
    for _ in range(TIMED_ROUNDS):
        for learner, times in zip(learners, seconds, strict=True):
            begin = time.perf_counter()
            perplexity(learner, tokens, streams=streams)
            times.append(time.perf_counter() - begin)
    return [(len(tokens) - 1) / median(times) for times in seconds]
