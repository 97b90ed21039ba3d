"""`bayesrnn captions features`: the features of a folder of images, by a frozen network."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from bayesrnn.cli.arguments import Source
from bayesrnn.cli.console import note, show, show_json
from bayesrnn.cli.launch import OnDevice


@dataclass(frozen=True)
class Features(OnDevice):
    """Compute the features of images with a frozen, pretrained network, for training and evaluation."""

    images: Positional[Path]
    """Folder of images; those in folders inside it are included."""
    out: Path = Path("features.safetensors")
    """File to write; if it exists, only images that it lacks are added."""
    encoder: Source = "efficientnet-lite0"
    """Image network: efficientnet-lite0, shapes, timm:MODEL, or timm:MODEL=FILE with local weights."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        from bayesrnn.files import check_output
        from bayesrnn.tasks.captions.data.images import read_file, under
        from bayesrnn.tasks.captions.encoders.encoder import load_encoder
        from bayesrnn.tasks.captions.features import extract
        from bayesrnn.tasks.captions.sources import encoding_progress

        check_output(self.out)
        names = under(self.images)
        encoder = load_encoder(self.encoder)
        try:
            with encoding_progress(len(names)) as advance:
                found = extract(
                    names, lambda name: read_file(self.images / name), encoder, self.out, advance
                )
        except KeyboardInterrupt:
            note(f"stopped; run the same command again to go on with {self.out}.")
            sys.exit(130)
        skipped = found.skipped
        kept = len(names) - len(skipped)
        if not kept:
            name, reason = next(iter(skipped.items()))
            raise ValueError(
                f"{self.images}: none of the {len(names)} images can be read ({name}: {reason})."
            )
        for name, reason in skipped.items():
            note(f"left out {name}: {reason}")
        if self.json:
            record = {"file": str(self.out), "encoder": encoder.key, "images": kept}
            record |= {"computed": found.computed, "skipped": dict(skipped)}
            show_json(record)
            return
        show(f"{kept:,} images, {found.computed:,} of them new; left out: {len(skipped):,}")
        show(f"wrote {self.out}: {encoder.size:,} features of each, by {encoder.key}")
