"""`bayesrnn captions describe`: captions for photos, with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from bayesrnn.cli.arguments import Beam, Samples, Seed, check_input
from bayesrnn.cli.console import note, show, show_json
from bayesrnn.cli.launch import OnDevice


@dataclass(frozen=True)
class Describe(OnDevice):
    """Describe photos: the caption, each word's uncertainty, and what other weight samples would say."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn captions train`."""
    photos: Positional[tuple[Path, ...]]
    """Image files."""
    samples: Samples = 10
    """Number of weight samples to average over at each word. Runs that cannot be sampled ignore it."""
    beam: Beam = 3
    """Width of the beam search; 1 for greedy decoding."""
    seed: Seed = 0
    """Random seed."""
    json: bool = False
    """Print one line of JSON for each photo."""

    def run(self) -> None:
        from bayesrnn.tasks.captions.photos import describe_photos
        from bayesrnn.tasks.captions.trained import open_captioner

        if not self.photos:
            raise ValueError("give at least one photo.")
        for photo in self.photos:
            check_input(photo)
        model = open_captioner(self.run_folder)
        described, skipped = describe_photos(
            model, self.photos, samples=self.samples, beam=self.beam, seed=self.seed
        )
        if not described:
            path, reason = next(iter(skipped.items()))
            rest = f" (and {len(skipped) - 1} more files)" if len(skipped) > 1 else ""
            raise ValueError(f"{path}: {reason}{rest}.")
        for path, reason in skipped.items():
            note(f"left out {path}: {reason}")
        for photo in described:
            if self.json:
                show_json(photo.as_json())
            else:
                show(photo.text())
