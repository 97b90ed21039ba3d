"""`bayesrnn prune`: how many weights of a run can be removed, and the small model that remains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Drop, Source, Streams, output_folder
from bayesrnn.cli.console import show, show_json

PICTURES = ("pruning-curve.png", "pruning-patterns.png")


@dataclass(frozen=True)
class Prune:
    """Prune by signal to noise: measure perplexity by share dropped, and export a small model."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train` with method bbb or sharpened."""
    drop: Drop | None = None
    """Share of weights to drop, for the pattern figure and the export; 0.8 by default."""
    max_loss: str | None = None
    """Largest allowed rise in perplexity, such as 1% or 0.01; finds the share, instead of --drop."""
    per_layer: bool = False
    """Drop the same share of each weight matrix, instead of one threshold for the whole model."""
    baseline: Path | None = None
    """Run folder of a baseline to prune by magnitude, such as a plain LSTM."""
    export: Path | None = None
    """File to write the pruned model to, for `evaluate`, `score` and `generate`."""
    storage: Literal["sparse", "int8"] = "sparse"
    """Storage in the exported file: sparse keeps exact values, int8 takes one byte per weight."""
    out: Path | None = None
    """Folder to write the figures to: the pruning curve and the pattern of each gate."""
    split: Literal["train", "valid", "test"] = "valid"
    """Split to evaluate on: train, valid or test."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into."""
    data: Source | None = None
    """Text to evaluate on; by default the text the run was trained on."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        from bayesrnn.cli.progress import steps
        from bayesrnn.evaluation.pruning import DROPS
        from bayesrnn.files import check_output
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.figures import save
        from bayesrnn.tasks.language import figures
        from bayesrnn.tasks.language import pruning_study as report
        from bayesrnn.tasks.language.trained import open_folder

        if self.drop is not None and self.max_loss is not None:
            raise ValueError("give --drop or --max-loss, not both.")
        drop = 0.8 if self.drop is None else self.drop
        max_loss = None if self.max_loss is None else _share(self.max_loss)
        if self.export is not None:
            check_output(self.export)
        if self.out is not None:
            check_extras(figures=True)
            output_folder(self.out, *PICTURES)
        model = open_folder(self.run_folder)
        report.posterior_of(model)  # reject a run without a posterior before any work
        baseline = None if self.baseline is None else open_folder(self.baseline)
        with steps(len(DROPS) * (2 if baseline is None else 3)) as tell:
            study = report.study_pruning(
                model,
                drop=drop,
                max_loss=max_loss,
                per_tensor=self.per_layer,
                baseline=baseline,
                split=self.split,
                data=self.data,
                streams=self.streams,
                progress=lambda what: tell(what, 1),
            )
        exported = None
        if self.export is not None:
            tokens = model.tokens(self.split, self.data)
            exported = report.export(
                study, model, self.export, self.storage, tokens=tokens, streams=self.streams
            )
        written = []
        if self.out is not None:
            kept = study.order.kept(study.drop)
            curve = figures.pruning_curve(study.curves, study.drop, self.split)
            for name, figure in zip(PICTURES, (curve, figures.pruning_patterns(kept)), strict=True):
                written.append(save(figure, self.out / name))
        if self.json:
            record = study.as_json()
            if exported is not None:
                record["export"] = {
                    "file": str(self.export),
                    "embedding": exported.shrunk.embedding,
                    "hidden": exported.shrunk.hidden,
                    "sizes": [size.as_json() for size in exported.sizes],
                }
            show_json(record)
            return
        show(f"{self.run_folder}: {self.split} perplexity, weights dropped in the order of")
        show(report.render_curves(study))
        rise = study.perplexity / study.curves[report.SIGNAL_TO_NOISE][0.0] - 1
        show(f"{study.drop:.2%} dropped: perplexity {study.perplexity:.2f} ({rise:+.2%})")
        if exported is not None:
            units = exported.shrunk
            show(
                f"\nunits left: {units.hidden[1]} of {units.hidden[0]} a layer, "
                f"{units.embedding[1]} of {units.embedding[0]} of the embedding"
            )
            show(report.render_sizes(exported.sizes))
            written.append(self.export)
        for path in written:
            show(f"wrote {path}")


def _share(text: str) -> float:
    """A share written as 1% or as 0.01."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"max-loss = {text!r} must be a share such as 1% or 0.01.")
    return value
