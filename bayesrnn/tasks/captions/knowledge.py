"""Whether a captioner knows when it is wrong: what to withhold, and images that show nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrnn.evaluation.abstaining import risk_coverage
from bayesrnn.evaluation.ranks import auroc, rank_correlation
from bayesrnn.tasks.captions.quality import Quality, describe
from bayesrnn.tasks.captions.trained import TrainedCaptioner

KEPT = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The shares of the captions that a rejection curve keeps."""


@dataclass(frozen=True)
class Knowledge:
    """Whether a model knows when it is wrong; None for what cannot be measured here."""

    way: str
    rejection: Rejection | None
    """None without pycocoevalcap."""
    noise: NoiseGap | None
    """None if the encoder of the features is not at hand."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = []
        if self.rejection is not None:
            kept = self.rejection.kept
            shares = ", ".join(
                f"{share:.0%}: {100 * kept[share]:.1f}" for share in (1.0, 0.8, 0.5, 0.2)
            )
            lines.append(
                f"{self.way}: rank correlation of confidence and CIDEr "
                f"{self.rejection.rank_correlation:.3f}; CIDEr of the surest {shares}"
            )
        if self.noise is not None:
            gap = self.noise
            lines.append(
                f"{self.way}: mean entropy of the captions' words {gap.photos:.2f} nats for photos, "
                f"{gap.noise:.2f} for noise (AUROC {gap.auroc:.3f})"
            )
            if gap.information_auroc is not None:
                lines.append(
                    f"{self.way}: mean mutual information {gap.photos_information:.4f} nats for photos, "
                    f"{gap.noise_information:.4f} for noise (AUROC {gap.information_auroc:.3f})"
                )
        return "\n".join(lines)


def knows(
    model: TrainedCaptioner, quality: Quality, noise: Tensor | None, seed: int = 0
) -> Knowledge:
    """Compare confidence with CIDEr, and photos with images of noise, by their features (N, F)."""
    return Knowledge(
        quality.way,
        None if quality.scores is None else rejection(model.name, quality),
        None if noise is None else noise_gap(model, quality, noise, seed),
    )


@dataclass(frozen=True)
class Rejection:
    """CIDEr of the captions that are kept as the least sure ones are withheld."""

    run: str
    way: str
    rank_correlation: float
    """Spearman's, of confidence and CIDEr over the images."""
    kept: Mapping[float, float]
    """Mean CIDEr by the share of captions kept, by confidence."""
    best: Mapping[float, float]
    """The same if captions were withheld by their CIDEr: the most that is possible."""


def rejection(run: str, quality: Quality) -> Rejection:
    """Whether confidence tells good captions from bad ones."""
    assert quality.scores is not None
    names = list(quality.texts)
    sure = torch.tensor([quality.confidence[name] for name in names], dtype=torch.float64)
    good = torch.tensor([quality.scores.per_image[name] for name in names], dtype=torch.float64)
    return Rejection(
        run,
        quality.way,
        rank_correlation(sure, good),
        _kept(good, sure),
        _kept(good, good),
    )


def _kept(values: Tensor, by: Tensor) -> dict[float, float]:
    curve = risk_coverage(-by, values)
    return {share: curve.at(share) for share in KEPT}


@dataclass(frozen=True)
class NoiseGap:
    """Mean entropy, per word of the model's own captions in nats, for photos and for images of noise."""

    run: str
    way: str
    photos: float
    noise: float
    photos_information: float
    """Mutual information, what the weight samples disagree about."""
    noise_information: float
    auroc: float
    """The probability that an image of noise has a higher mean entropy than a photo."""
    information_auroc: float | None
    """The same of mutual information; None without samples, when there is none."""


def noise_gap(model: TrainedCaptioner, quality: Quality, noise: Tensor, seed: int = 0) -> NoiseGap:
    """Whether the model is less sure of images that show nothing, given their features (N, F)."""
    said = describe(model, noise, samples=quality.samples, beam=quality.beam, seed=seed)
    return NoiseGap(
        run=model.name,
        way=quality.way,
        photos=quality.entropy.mean().item(),
        noise=said.mean_entropy.mean().item(),
        photos_information=quality.information.mean().item(),
        noise_information=said.mean_information.mean().item(),
        auroc=auroc(quality.entropy, said.mean_entropy),
        information_auroc=(
            auroc(quality.information, said.mean_information) if quality.samples else None
        ),
    )


def noise_features(
    model: TrainedCaptioner, images: int = 100, seed: int = 0
) -> tuple[Tensor | None, str]:
    """The features (N, F) of images of independent random pixels; None, and why, without their encoder."""
    from PIL import Image

    try:
        encoder = model.encoder
    except ValueError as error:
        return None, f"no images of noise: {error}"
    generator = torch.Generator().manual_seed(seed)
    shape = (encoder.pixels, encoder.pixels, 3)
    rows = []
    for _ in range(images):
        pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        rows.append(encoder([Image.fromarray(pixels.numpy())]))
    return torch.cat(rows), ""
