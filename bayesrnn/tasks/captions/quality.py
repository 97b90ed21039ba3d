"""How good a captioner's captions are, and whether it knows: scores, confidence, and what to withhold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrnn.evaluation.ranks import auroc, rank_correlation
from bayesrnn.tasks.captions.data.encoded import encode_tokens
from bayesrnn.tasks.captions.evaluation.decoding import Caption
from bayesrnn.tasks.captions.evaluation.scores import Scores, available, score
from bayesrnn.tasks.captions.evaluation.words import CaptionBeliefs
from bayesrnn.tasks.captions.trained import Split, TrainedCaptioner

KEPT = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The shares of the captions that a rejection curve keeps."""


@dataclass(frozen=True)
class Described:
    """The captions of images, and what the model believes about their words."""

    captions: list[Caption]
    beliefs: CaptionBeliefs

    @property
    def confidence(self) -> Tensor:
        """Of each caption (images,): the geometric mean of its words' probabilities, from 0 to 1."""
        return self.beliefs.per_caption(self.beliefs.words.log_prob).exp()

    @property
    def mean_entropy(self) -> Tensor:
        """Of the words of each caption (images,), in nats."""
        return self.beliefs.per_caption(self.beliefs.words.entropy)

    @property
    def mean_information(self) -> Tensor:
        """Mutual information of the words of each caption (images,), in nats."""
        return self.beliefs.per_caption(self.beliefs.words.mutual_information)


@dataclass(frozen=True)
class Quality:
    """The captions of one way of predicting on a split."""

    way: str
    samples: int
    beam: int
    perplexity: float
    """Of the reference captions, in this way of predicting."""
    scores: Scores | None
    """None without pycocoevalcap."""
    texts: Mapping[str, str]
    """The caption of each image, by its name."""
    confidence: Mapping[str, float]
    """The confidence in each caption, by the name of its image."""
    entropy: Tensor  # (images,)
    """Mean entropy of the words of each caption, in nats."""
    information: Tensor  # (images,)
    """Mean mutual information of the words of each caption, in nats."""
    right: float | None = None
    """The share of captions that are true, where the data set can tell."""

    def as_json(self) -> dict[str, Any]:
        """The results, without those of single images."""
        values = asdict(self)
        for name in ("texts", "confidence", "entropy", "information"):
            del values[name]
        if self.scores is not None:
            del values["scores"]["per_image"]
        return values


NO_SCORES = "BLEU, CIDEr and the other scores need pycocoevalcap: pip install 'bayesrnn[captions]'."


def quality_table(found: Sequence[Quality]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each way of predicting; scores times 100, as they are usually given."""
    headings = ["", "perplexity", *(f"BLEU-{n}" for n in range(1, 5)), "CIDEr", "ROUGE-L", "METEOR"]
    cells = []
    for quality in found:
        scores = quality.scores
        values = [None] * 7 if scores is None else [*scores.bleu, *_others(scores)]
        cells.append([quality.way, f"{quality.perplexity:.2f}", *map(percent, values)])
        if any(q.right is not None for q in found):
            cells[-1].append(percent(quality.right))
    if any(q.right is not None for q in found):
        headings.append("right (%)")
    return headings, cells


def percent(value: float | None) -> str:
    """A score times 100."""
    return "-" if value is None else f"{100 * value:.1f}"


def results(quality: Quality, split: Split) -> list[dict[str, Any]]:
    """The captions in MSCOCO's format for results, with the file's name, the confidence and CIDEr added."""
    return [
        {
            "image_id": entry.id if entry.id != "" else entry.image,
            "file_name": entry.image,
            "caption": quality.texts[entry.image],
            "confidence": quality.confidence[entry.image],
            "cider": None if quality.scores is None else quality.scores.per_image[entry.image],
        }
        for entry in split.entries
    ]


def _others(scores: Scores) -> list[float | None]:
    return [scores.cider, scores.rouge, scores.meteor]


def way_name(model: TrainedCaptioner, samples: int) -> str:
    return f"{samples} samples" if samples else "mean" if model.method.posterior else "no sampling"


def describe(
    model: TrainedCaptioner,
    features: Tensor,
    *,
    samples: int = 0,
    beam: int = 3,
    seed: int = 0,
    progress: Callable[[int], None] = lambda images: None,
) -> Described:
    """The captions of images (N, F), and what the same weights believe about their words."""
    members = model.members(samples, seed)
    captions = model.decode(features, members, beam=beam, progress=progress)
    tokens = [caption.tokens for caption in captions]
    ended = [caption.ended for caption in captions]
    end = model.vocabulary.end
    encoded = encode_tokens(tokens, torch.arange(len(tokens)), features, end, ended)
    return Described(captions, model.beliefs(encoded, members))


def measure(
    model: TrainedCaptioner,
    split: Split,
    *,
    samples: int = 0,
    beam: int = 3,
    seed: int = 0,
    meteor: bool = True,
    progress: Callable[[int], None] = lambda images: None,
) -> Quality:
    """Perplexity of a split's captions, and the scores of the model's own captions for its images."""
    members = model.members(samples, seed)
    perplexity = model.beliefs(model.encoded(split), members).perplexity
    described = describe(
        model, split.features, samples=samples, beam=beam, seed=seed, progress=progress
    )
    names = [entry.image for entry in split.entries]
    texts = {
        name: caption.text(model.vocabulary)
        for name, caption in zip(names, described.captions, strict=True)
    }
    return Quality(
        way=way_name(model, samples),
        samples=samples,
        beam=beam,
        perplexity=perplexity,
        scores=score(texts, split.references, meteor=meteor) if available() else None,
        texts=texts,
        confidence=dict(zip(names, described.confidence.tolist(), strict=True)),
        entropy=described.mean_entropy,
        information=described.mean_information,
        right=_share_right(split, texts),
    )


def _share_right(split: Split, texts: Mapping[str, str]) -> float | None:
    is_right = split.images.is_right
    if is_right is None:
        return None
    return sum(is_right(text, name) for name, text in texts.items()) / len(texts)


# ---------------------------------------------------------------------- does it know when it is wrong?


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
    ordered = values[by.argsort(descending=True, stable=True)]
    return {share: ordered[: max(1, round(share * len(ordered)))].mean().item() for share in KEPT}


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


def alternatives(
    model: TrainedCaptioner, features: Tensor, samples: int, *, beam: int = 1, seed: int = 0
) -> list[dict[str, int]]:
    """What each weight sample on its own would have said of each image: captions and their counts."""
    said: list[dict[str, int]] = [{} for _ in features]
    for member in model.members(samples, seed):
        for image, caption in enumerate(model.decode(features, [member], beam=beam)):
            text = caption.text(model.vocabulary)
            said[image][text] = said[image].get(text, 0) + 1
    return [dict(sorted(counts.items(), key=lambda item: -item[1])) for counts in said]
