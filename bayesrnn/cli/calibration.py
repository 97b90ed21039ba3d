"""`bayesrnn calibration`: does a run's confidence match its accuracy?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from bayesrnn.cli.arguments import Samples, Seed, Source, Streams, Words, output_folder
from bayesrnn.cli.console import note, show, show_json, working
from bayesrnn.cli.kinds import CAPTIONS, DIGITS, LANGUAGE, check_unused, kind_of, refusal
from bayesrnn.cli.launch import OnRanks

if TYPE_CHECKING:
    from bayesrnn.report.calibration import CalibrationRow

PICTURES = ("reliability.png", "nats-by-confidence.png")


@dataclass(frozen=True)
class Calibration(OnRanks):
    """Measure calibration: expected calibration error, Brier score and likelihood by confidence."""

    run_folders: Positional[tuple[Path, ...]]
    """Run folders of one experiment, on the same data; files written by `bayesrnn prune --export`; or
    pretrained."""
    samples: Samples = 10
    """Number of weight samples to average over; 0 to skip. Runs that cannot be sampled ignore it."""
    words: Words = 0
    """Number of words to evaluate on; 0 for all (language models only)."""
    split: Literal["train", "valid", "test"] = "test"
    """Split to evaluate on: train, valid or test."""
    streams: Streams = 20
    """Number of parallel streams to divide the text into (language models only)."""
    seed: Seed = 0
    """Random seed."""
    data: Source | None = None
    """Data to evaluate on; by default the data each run was trained on."""
    out: Path | None = None
    """Folder to write the figures to."""
    json: bool = False
    """Print one line of JSON for each row."""

    def run(self) -> None:
        from bayesrnn import ranks
        from bayesrnn.report import calibration, figures
        from bayesrnn.report.extras import check_extras

        if not self.run_folders:
            raise ValueError("give at least one run folder.")
        check_extras(figures=self.out is not None)
        kind = kind_of(*self.run_folders)
        if kind != LANGUAGE:
            check_unused(self, self.run_folders[0], kind, "words", "streams")
        rows = self._rows(kind)
        if self.json:
            for row in rows:
                show_json(row.as_json())
        else:
            show(calibration.render(rows))
        if self.out is not None and ranks.is_first():
            guessed = "class" if kind == DIGITS else "word"
            pictures = {
                PICTURES[0]: calibration.reliability(rows, guessed),
                PICTURES[1]: calibration.nats_by_confidence(rows, guessed),
            }
            for name, figure in pictures.items():
                path = figures.save(figure, self.out / name)
                if not self.json:
                    show(f"wrote {path}")

    def _rows(self, kind: str) -> list[CalibrationRow]:
        if kind == LANGUAGE:
            return self._of_text()
        if kind == DIGITS:
            return self._of_digits()
        if kind == CAPTIONS:
            return self._of_captions()
        raise refusal(self.run_folders[0], kind, (LANGUAGE, DIGITS, CAPTIONS))

    def _of_text(self) -> list[CalibrationRow]:
        from bayesrnn.cli.progress import steps
        from bayesrnn.tasks.language import uncertainty_study as study
        from bayesrnn.tasks.language.trained import open_trained

        models = open_trained(*self.run_folders)
        subjects = study.subjects(models, split=self.split, data=self.data, words=self.words)
        self._make_folder()
        rows = []
        with steps(sum(2 * len(subject.tokens) for subject in subjects)) as tell:
            for subject in subjects:
                rows += study.study_calibration(
                    subject, self.samples, streams=self.streams, seed=self.seed, progress=tell
                )
        return rows

    def _of_digits(self) -> list[CalibrationRow]:
        from bayesrnn.tasks.digits.comparison import calibration_of, subjects
        from bayesrnn.training.experiment import open_runs

        _, runs = open_runs(self.run_folders)
        examined = subjects(runs, data=self.data, samples=self.samples, seed=self.seed)
        self._make_folder()
        return [row for subject in examined for row in calibration_of(subject, self.split)]

    def _of_captions(self) -> list[CalibrationRow]:
        from bayesrnn.tasks.captions.trained import notes_of, trained_captioners
        from bayesrnn.tasks.captions.words_study import calibration_of, check_comparable
        from bayesrnn.training.experiment import open_runs

        _, runs = open_runs(self.run_folders)
        models = trained_captioners(runs, self.data)
        check_comparable(models, self.split)
        for line in notes_of(models, self.split):
            note(line)
        self._make_folder()
        rows = []
        with working("reading the captions") as tell:
            for model in models:
                tell(f"calibration of {model.name}")
                rows += calibration_of(model, self.samples, split=self.split, seed=self.seed)
        return rows

    def _make_folder(self) -> None:
        """Once the runs are known to be right, and before any work."""
        if self.out is not None:
            output_folder(self.out, *PICTURES)
