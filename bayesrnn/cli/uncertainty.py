"""`bayesrnn uncertainty`: is a run less certain of data unlike its training data?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import (
    Between,
    Seed,
    Share,
    Source,
    Streams,
    Window,
    Words,
    output_folder,
)
from bayesrnn.cli.console import show, show_json, working
from bayesrnn.cli.kinds import DIGITS, LANGUAGE, check_unused, kind_of, refusal
from bayesrnn.cli.launch import OnRanks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("entropy-gap.png", "told-apart.png", "told-apart-entropy.png", "told-apart-mi.png")


@dataclass(frozen=True)
class Uncertainty(OnRanks):
    """Measure uncertainty on other data: reversed, noisy or foreign text, or rotated digits."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders of `bayesrnn train` with one vocabulary, files written by `bayesrnn prune --export`, or
    pretrained; or run folders of `bayesrnn mnist`, whose digits are rotated."""
    samples: tuple[Annotated[int, Between(1, 10_000)], ...] = (1, 2, 5, 10, 20)
    """Numbers of weight samples to average over. Runs that cannot be sampled ignore them."""
    other: Source | None = None
    """Text of another domain: pydocs, ptb, wikitext-2, a folder or a file. By default pydocs, for runs
    that were trained on other text but know most of its words."""
    noise: tuple[Share, ...] = (0.05, 0.1, 0.2, 0.5)
    """Shares of words to replace by random ones, one noisy text for each."""
    window: Window = 10
    """Number of words in a window to classify as in- or out-of-distribution."""
    words: Words = 0
    """Number of words to evaluate on; 0 for all."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into."""
    seed: Seed = 0
    """Random seed."""
    data: Source | None = None
    """In-distribution data; by default the data each run was trained on."""
    out: Path | None = None
    """Folder to write the figures to."""
    json: bool = False
    """Print one line of JSON for each row."""

    def run(self) -> None:
        from bayesrnn.report.extras import check_extras

        if not self.run_folders:
            raise ValueError("give at least one run folder.")
        check_extras(figures=self.out is not None)
        kind = kind_of(*self.run_folders)
        if kind == LANGUAGE:
            self._of_text()
        elif kind == DIGITS:
            self._of_digits()
        else:
            instead = "captions evaluate RUN --uncertainty --samples 10"
            raise refusal(self.run_folders[0], kind, (LANGUAGE, DIGITS), captions=instead)

    def _of_digits(self) -> None:
        from bayesrnn.report.table import text_table
        from bayesrnn.tasks.digits import comparison, figures
        from bayesrnn.training.experiment import open_runs

        only_text = ("other", "noise", "window", "words", "split", "streams")
        check_unused(self, self.run_folders[0], DIGITS, *only_text)
        _, runs = open_runs(self.run_folders)
        subjects = comparison.subjects(runs, data=self.data, samples=0, seed=self.seed)
        if self.out is not None:
            output_folder(self.out, *figures.ANGLE_PICTURES)
        with working("rotating digits") as tell:
            found = comparison.all_rotations(
                subjects, self.samples, lambda name: tell(f"rotating the digits of {name}")
            )
        if self.json:
            for rotation in found:
                for record in rotation.as_json():
                    show_json(record)
        else:
            show(
                "test digits rotated, in degrees; entropies in nats; gaps relative to upright digits\n"
            )
            show(text_table(*comparison.rotation_table(found)))
        if self.out is not None:
            self._write(figures.turned(found))

    def _of_text(self) -> None:
        from bayesrnn.cli.progress import steps
        from bayesrnn.tasks.language import figures
        from bayesrnn.tasks.language import uncertainty_study as study
        from bayesrnn.tasks.language.evaluation.uncertainty import check_window
        from bayesrnn.tasks.language.trained import open_trained

        study.check_counts(self.samples)
        models = open_trained(*self.run_folders)
        subjects = study.subjects(models, split=self.split, data=self.data, words=self.words)
        work = []
        for subject in subjects:
            texts = study.other_texts(
                subject,
                split=self.split,
                other=self.other,
                noise=self.noise,
                seed=self.seed,
            )
            work.append((subject, texts))
        for _, texts in work:
            for text in texts:
                check_window(self.window, len(text.tokens) - 1)
        if self.out is not None:
            output_folder(self.out, *PICTURES)
        gaps = []
        total = sum(study.passes(subject, texts, self.samples) for subject, texts in work)
        with steps(total) as tell:
            for subject, texts in work:
                gaps += study.study_uncertainty(
                    subject,
                    texts,
                    self.samples,
                    window=self.window,
                    streams=self.streams,
                    seed=self.seed,
                    progress=tell,
                )
        if self.json:
            for gap in gaps:
                show_json(gap.as_json())
        else:
            show(study.described(subjects, self.split, self.window))
            show(study.render_gaps(gaps))
        if self.out is not None:
            pictures = (
                figures.entropy_gap(gaps),
                figures.told_apart(gaps),
                figures.told_apart(gaps, "entropy"),
                figures.told_apart(gaps, "mutual_information"),
            )
            self._write(dict(zip(PICTURES, pictures, strict=True)))

    def _write(self, pictures: Mapping[str, Figure]) -> None:
        from bayesrnn import ranks
        from bayesrnn.report.figures import save

        assert self.out is not None
        if not ranks.is_first():
            return
        for name, figure in pictures.items():
            path = save(figure, self.out / name)
            if not self.json:
                show(f"wrote {path}")
