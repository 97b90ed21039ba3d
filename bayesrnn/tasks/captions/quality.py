"""How good a captioner's captions are: perplexity, scores, and the confidence in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrnn.tasks.captions.data.encoded import encode_tokens
from bayesrnn.tasks.captions.evaluation.decoding import Caption
from bayesrnn.tasks.captions.evaluation.scores import Scores, available, score
from bayesrnn.tasks.captions.evaluation.words import CaptionBeliefs
from bayesrnn.tasks.captions.trained import Split, TrainedCaptioner


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
