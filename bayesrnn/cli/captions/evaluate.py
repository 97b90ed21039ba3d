"""`bayesrnn captions evaluate`: the perplexity and the caption scores of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Beam, Samples, Seed, Source
from bayesrnn.cli.console import as_json, note, show, show_json
from bayesrnn.cli.launch import OnDevice


@dataclass(frozen=True)
class Evaluate(OnDevice):
    """Measure a caption run: perplexity, BLEU, CIDEr, ROUGE, METEOR, whether it knows when it is wrong."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn captions train`."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    samples: Samples = 0
    """Number of weight samples to average over at each word, besides the mean; 0 to skip."""
    beam: Beam = 3
    """Width of the beam search; 1 for greedy decoding."""
    uncertainty: bool = False
    """Add the rank correlation of confidence and CIDEr, and the entropy for images of noise."""
    out: Path | None = None
    """File to write the captions to, as JSON in MSCOCO's format for results."""
    data: Source = ""
    """Images to evaluate on; by default those the run was trained on."""
    features: Source = ""
    """File of features for these images; by default the run's own, or computed and cached."""
    seed: Seed = 0
    """Random seed."""
    json: bool = False
    """Print one line of JSON for each result."""

    def run(self) -> None:
        from bayesrnn.cli.progress import steps
        from bayesrnn.files import RESULTS, check_output, write_text
        from bayesrnn.report.extras import check_extras
        from bayesrnn.report.table import text_table
        from bayesrnn.tasks.captions import knowledge, quality
        from bayesrnn.tasks.captions.trained import open_captioner

        if self.uncertainty:
            check_extras(figures=False)
        if self.out is not None:
            check_output(self.out, RESULTS)
        model = open_captioner(self.run_folder, self.data or None, self.features or None)
        counts = [0, self.samples] if self.samples else [0]
        for count in counts:
            model.members(count, self.seed)  # reject what cannot be done before any work
        split = model.split(self.split)
        for line in split.notes:
            note(line)
        found = []
        with steps(len(counts) * len(split.entries)) as advance:
            for count in counts:
                way = quality.way_name(model, count)
                found.append(
                    quality.measure(
                        model,
                        split,
                        samples=count,
                        beam=self.beam,
                        seed=self.seed,
                        progress=lambda images, way=way: advance(way, images),
                    )
                )
        checks = []
        if self.uncertainty:
            noise, missing = knowledge.noise_features(model)
            if missing:
                note(missing)
            checks = [knowledge.knows(model, q, noise, self.seed) for q in found]
        if self.json:
            for record in [*(q.as_json() for q in found), *(c.as_json() for c in checks)]:
                show_json(record)
        else:
            captions = sum(len(entry.captions) for entry in split.entries)
            show(
                f"{self.run_folder}, {self.split}: {len(split.entries):,} images, {captions:,} captions"
            )
            show(text_table(*quality.quality_table(found)))
            for said in {q.scores.note if q.scores else quality.NO_SCORES for q in found}:
                if said:
                    show(said)
            for check in checks:
                show(check.text())
        if self.out is not None:
            results = quality.results(found[-1], split)
            write_text(self.out, as_json(results, indent=1))
            if not self.json:
                at = "at the mean weights" if found[-1].way == "mean" else f"of {found[-1].way}"
                show(f"wrote {self.out}: the captions {at}")
