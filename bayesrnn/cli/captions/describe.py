"""`bayesrnn captions describe`: captions for photos, with their uncertainty."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Describe:
    """Describe photos: the caption, each word's uncertainty, and what other weight samples would say."""

    run_folder: Positional[Path]
    """Run folder of `bayesrnn captions train`."""
    photos: Positional[tuple[Path, ...]]
    """Image files."""
    samples: int = 10
    """Number of weight samples to average over at each word. Runs that cannot be sampled ignore it."""
    beam: int = 3
    """Width of the beam search; 1 for greedy decoding."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print one line of JSON for each photo."""

    def run(self) -> None:
        from bayesrnn.tasks.captions.photos import describe_photos
        from bayesrnn.tasks.captions.trained import open_captioner

        if not self.photos:
            raise ValueError("give at least one photo.")
        if self.beam < 1 or self.samples < 0:
            raise ValueError(
                f"beam = {self.beam} must be at least 1, and samples = {self.samples} 0 or more."
            )
        model = open_captioner(self.run_folder)
        described, skipped = describe_photos(
            model, self.photos, samples=self.samples, beam=self.beam, seed=self.seed
        )
        if not described:
            path, reason = next(iter(skipped.items()))
            rest = f" (and {len(skipped) - 1} more files)" if len(skipped) > 1 else ""
            raise ValueError(f"{path}: {reason}{rest}.")
        for path, reason in skipped.items():
            print(f"left out {path}: {reason}", file=sys.stderr)
        for photo in described:
            print(json.dumps(photo.as_json()) if self.json else photo.text())
