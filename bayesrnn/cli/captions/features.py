"""`bayesrnn captions features`: the features of a folder of images, by a frozen network."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Features:
    """Compute the features of images with a frozen, pretrained network, for training and evaluation."""

    images: Positional[Path]
    """Folder of images; those in folders inside it are included."""
    out: Path = Path("features.safetensors")
    """File to write; if it exists, only images that it lacks are added."""
    encoder: str = "efficientnet-lite0"
    """Image network: efficientnet-lite0, shapes, timm:MODEL, or timm:MODEL=FILE with local weights."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        from bayesrnn.files import check_writable
        from bayesrnn.tasks.captions.data.images import read_file, under
        from bayesrnn.tasks.captions.encoders.encoder import load_encoder
        from bayesrnn.tasks.captions.features import extract
        from bayesrnn.tasks.captions.sources import encoding_progress

        check_writable(self.out)
        names = under(self.images)
        encoder = load_encoder(self.encoder)
        try:
            with encoding_progress(len(names)) as advance:
                found = extract(
                    names, lambda name: read_file(self.images / name), encoder, self.out, advance
                )
        except KeyboardInterrupt:
            print(f"stopped; run the same command again to go on with {self.out}.", file=sys.stderr)
            sys.exit(130)
        skipped = found.skipped
        kept = len(names) - len(skipped)
        if not kept:
            name, reason = next(iter(skipped.items()))
            raise ValueError(
                f"{self.images}: none of the {len(names)} images can be read ({name}: {reason})."
            )
        for name, reason in skipped.items():
            print(f"left out {name}: {reason}", file=sys.stderr)
        if self.json:
            record = {"file": str(self.out), "encoder": encoder.key, "images": kept}
            record |= {"computed": found.computed, "skipped": dict(skipped)}
            print(json.dumps(record))
            return
        print(f"{kept:,} images, {found.computed:,} of them new; left out: {len(skipped):,}")
        print(f"wrote {self.out}: {encoder.size:,} features of each, by {encoder.key}")
