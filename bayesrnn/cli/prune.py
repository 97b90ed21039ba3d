"""`bayesrnn prune`: how many weights of a run can be removed, and the small model that remains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Drop, Source, Streams, check_needs, output_folder, share
from bayesrnn.cli.console import show, show_json
from bayesrnn.cli.kinds import CAPTIONS, DIGITS, LANGUAGE, check_unused, kind_of, refusal
from bayesrnn.cli.launch import OnDevice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayesrnn.evaluation.pruning_study import Prunable, PruningStudy
    from bayesrnn.tasks.language.pruning_study import Export

PICTURES = ("pruning-curve.png", "pruning-patterns.png")


@dataclass(frozen=True)
class Prune(OnDevice):
    """Prune by signal to noise: measure perplexity or error by share dropped, and export a small model."""

    run_folder: Positional[Path]
    """Run folder, of any experiment, with method bbb or sharpened."""
    drop: Drop | None = None
    """Share of weights to drop, such as 0.8 or 80%, for the pattern figure and the export; 0.8 by default."""
    max_loss: str | None = None
    """Largest allowed rise in perplexity or error, relative to that of the whole model, such as 1% or 0.01;
    finds the share, instead of --drop."""
    per_layer: bool = False
    """Drop the same share of each weight matrix, instead of one threshold for the whole model."""
    baseline: Path | None = None
    """Run folder of a baseline to prune by magnitude, such as a plain LSTM on the same data."""
    export: Path | None = None
    """File to write the pruned model to, for `evaluate`, `score` and `generate` (language models only)."""
    posterior: bool = False
    """Export the posterior, pruned means and sigma, which can be sampled, instead of the mean weights."""
    storage: Literal["sparse", "int8"] = "sparse"
    """Storage in the exported file: sparse keeps exact values, int8 takes one byte per weight."""
    out: Path | None = None
    """Folder to write the figures to: the pruning curve and, of language models, each gate's pattern."""
    split: Literal["train", "valid", "test"] = "valid"
    """Split to evaluate on: train, valid or test."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into (language models only)."""
    data: Source | None = None
    """Data to evaluate on; by default the data the run was trained on."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        from bayesrnn.files import EXPORT, check_output
        from bayesrnn.report.extras import check_extras

        if self.drop is not None and self.max_loss is not None:
            raise ValueError("give --drop or --max-loss, not both.")
        if self.max_loss is not None:
            _share(self.max_loss)
        if self.export is not None:
            check_output(self.export, EXPORT)
        if self.out is not None:
            check_extras(figures=True)
        kind = kind_of(*self._folders())
        if kind == LANGUAGE:
            return self._prune_text()
        check_unused(self, self.run_folder, kind, "export", "posterior", "storage", "streams")
        if kind == DIGITS:
            return self._prune_digits()
        if kind == CAPTIONS:
            return self._prune_captions()
        raise refusal(self.run_folder, kind, (LANGUAGE, DIGITS, CAPTIONS))

    def _folders(self) -> list[Path]:
        return [self.run_folder] if self.baseline is None else [self.run_folder, self.baseline]

    def _choice(self) -> dict[str, Any]:
        """What to drop, as arguments of a study."""
        return {
            "drop": 0.8 if self.drop is None else self.drop,
            "max_loss": None if self.max_loss is None else _share(self.max_loss),
            "per_tensor": self.per_layer,
            "split": self.split,
        }

    def _prune_digits(self) -> None:
        from bayesrnn.tasks.digits import comparison, figures
        from bayesrnn.training.experiment import open_runs

        _, runs = open_runs(self._folders())
        subjects = comparison.subjects(runs, data=self.data, samples=0)
        study = self._study([comparison.prunable(s, self.split) for s in subjects], "error")
        self._report(study, {PICTURES[0]: lambda: figures.pruned_errors(study.curves, self.split)})

    def _prune_captions(self) -> None:
        from bayesrnn.tasks.captions import figures, words_study
        from bayesrnn.tasks.captions.trained import trained_captioners
        from bayesrnn.training.experiment import open_runs

        _, runs = open_runs(self._folders())
        models = trained_captioners(runs, self.data)
        words_study.check_comparable(models, self.split)
        study = self._study([words_study.prunable(m, self.split) for m in models], "perplexity")
        self._report(study, {PICTURES[0]: lambda: figures.pruning_curves(study.curves, self.split)})

    def _study(self, models: list[Prunable], measured: str) -> PruningStudy:
        from bayesrnn.evaluation.pruning_study import posterior_of, study_pruning

        model, *others = models
        posterior_of(model.method, model.method_name, model.path)  # reject before any work
        self._make_folder(PICTURES[:1])
        with self._progress() as tell:
            return study_pruning(
                model,
                measured=measured,
                baseline=others[0] if others else None,
                progress=lambda what: tell(what, 1),
                **self._choice(),
            )

    def _prune_text(self) -> None:
        from bayesrnn.tasks.language import figures
        from bayesrnn.tasks.language import pruning_study as report
        from bayesrnn.tasks.language.comparison import check_same_text
        from bayesrnn.tasks.language.trained import open_folder

        check_needs(self, "posterior", "export", "FILE")
        check_needs(self, "storage", "export", "FILE")
        model, *others = [open_folder(folder) for folder in self._folders()]
        report.posterior_of(model)  # reject a run without a posterior before any work
        check_same_text([model, *others], (self.split,), self.data)
        self._make_folder(PICTURES)
        with self._progress() as tell:
            study = report.study_pruning(
                model,
                baseline=others[0] if others else None,
                data=self.data,
                streams=self.streams,
                progress=lambda what: tell(what, 1),
                **self._choice(),
            )
        exported = None
        if self.export is not None:
            tokens = model.tokens(self.split, self.data)
            exported = report.export(
                study,
                model,
                self.export,
                self.storage,
                posterior=self.posterior,
                tokens=tokens,
                streams=self.streams,
            )
        pictures = {
            PICTURES[0]: lambda: figures.pruning_curve(study.curves, study.drop, self.split),
            PICTURES[1]: lambda: figures.pruning_patterns(study.order.kept(study.drop)),
        }
        self._report(study, pictures, exported)

    def _progress(self) -> AbstractContextManager[Callable[[str, int], None]]:
        from bayesrnn.cli.progress import steps
        from bayesrnn.evaluation.pruning import DROPS

        return steps(len(DROPS) * (2 if self.baseline is None else 3))

    def _make_folder(self, names: Sequence[str]) -> None:
        """Once the runs are known to be right, and before any work."""
        if self.out is not None:
            output_folder(self.out, *names)

    def _report(
        self,
        study: PruningStudy,
        pictures: Mapping[str, Callable[[], Figure]],
        exported: Export | None = None,
    ) -> None:
        """Write the figures, and print the study."""
        from bayesrnn.report.figures import save

        written: list[Path] = []
        if self.out is not None:
            written += [save(draw(), self.out / name) for name, draw in pictures.items()]
        if self.json:
            record = study.as_json()
            if exported is not None:
                record["export"] = {"file": str(self.export), **exported.as_json()}
            show_json(record)
            return
        table = f"{self.split} {study.measured} by share of weights dropped, smallest first by:"
        show(f"{self.run_folder}: {table}")
        show(_curves(study))
        rise = f" ({study.at_drop / study.whole - 1:+.2%})" if study.whole else ""
        at_drop = _loss(study, study.at_drop)
        show(f"{study.drop:.2%} dropped: {study.measured} {at_drop}{rise}")
        if exported is not None and self.export is not None:
            show(f"\n{exported.text()}")
            written.append(self.export)
        for path in written:
            show(f"wrote {path}")


def _curves(study: PruningStudy) -> str:
    """A row for each share of weights dropped, and a column for each order of dropping them."""
    from bayesrnn.report.table import text_table

    shares = next(iter(study.curves.values()))
    rows = [
        [f"{drop:.1%}", *(_loss(study, points[drop]) for points in study.curves.values())]
        for drop in shares
    ]
    return text_table(["dropped", *study.curves], rows)


def _loss(study: PruningStudy, value: float) -> str:
    return f"{value:.2%}" if study.measured == "error" else f"{value:.2f}"


def _share(text: str) -> float:
    """A share written as 1% or as 0.01."""
    try:
        value = share(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"max-loss = {text!r} must be a share such as 1% or 0.01.")
    return value
