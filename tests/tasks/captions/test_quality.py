"""Scores, confidence and what to withhold: figures that can be checked by hand."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.evaluation.beliefs import Beliefs
from bayesrnn.evaluation.ranks import rank_correlation
from bayesrnn.tasks.captions import knowledge
from bayesrnn.tasks.captions.data.captioned import Captioned, CaptionedImages
from bayesrnn.tasks.captions.evaluation.decoding import Caption
from bayesrnn.tasks.captions.evaluation.scores import Scores
from bayesrnn.tasks.captions.evaluation.words import CaptionBeliefs
from bayesrnn.tasks.captions.knowledge import rejection
from bayesrnn.tasks.captions.photos import caption_words
from bayesrnn.tasks.captions.quality import Described, Quality, results
from bayesrnn.tasks.captions.trained import Split, TrainedCaptioner, check_same_images

NAMES = [f"{n}.jpg" for n in range(10)]
CIDER = [0.1, 0.9, 0.3, 0.7, 0.5, 0.2, 0.8, 0.4, 0.6, 1.0]
SURE = [0.15, 0.9, 0.3, 0.7, 0.5, 0.12, 0.8, 0.4, 0.6, 0.2]  # the last is good, and unsure


def _quality(confidence=SURE) -> Quality:
    scores = Scores(
        (0.4, 0.3, 0.2, 0.1), 0.55, 0.5, None, dict(zip(NAMES, CIDER, strict=True)), None
    )
    return Quality(
        way="mean",
        samples=0,
        beam=3,
        perplexity=12.0,
        scores=scores,
        texts={name: f"caption of {name}" for name in NAMES},
        confidence=dict(zip(NAMES, confidence, strict=True)),
        entropy=torch.arange(10.0),
        information=torch.full((10,), 0.25),
    )


def test_withholding_the_least_sure():
    found = rejection("run", _quality())
    assert found.kept[1.0] == pytest.approx(0.55)
    assert found.kept[0.5] == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.5) / 5)
    assert found.kept[0.1] == pytest.approx(0.9)
    assert found.best[0.2] == pytest.approx(0.95)
    assert rejection("run", _quality(CIDER)).rank_correlation == pytest.approx(1.0)
    assert rejection("run", _quality([-c for c in CIDER])).rank_correlation == pytest.approx(-1.0)
    # The ranks differ in the last image (rank 10, and 3) and in seven that move by one.
    ranks = (
        torch.tensor([1.0, 9, 3, 7, 5, 2, 8, 4, 6, 10]),
        torch.tensor([2.0, 10, 4, 8, 6, 1, 9, 5, 7, 3]),
    )
    expected = 1 - 6 * (ranks[0] - ranks[1]).square().sum().item() / (10 * 99)
    assert found.rank_correlation == pytest.approx(expected)


def test_equal_values_share_their_rank():
    assert rank_correlation(torch.tensor([1.0, 2, 2, 3]), torch.tensor([1.0, 2, 3, 4])) == (
        pytest.approx(0.9486833)
    )


def test_results_belong_to_their_images():
    entries = tuple(Captioned(name, ("a",), 100 + n) for n, name in enumerate(NAMES[:9]))
    split = Split(cast(Any, None), (*entries, Captioned(NAMES[9], ("a",))), torch.zeros(10, 3), ())
    found = results(_quality(), split)
    for n, result in enumerate(found):
        assert result["image_id"] == (100 + n if n < 9 else NAMES[9])
        assert result["file_name"] == NAMES[n]
        assert result["caption"] == f"caption of {n}.jpg"
        assert result["confidence"] == SURE[n]
        assert result["cider"] == CIDER[n]


def _described() -> Described:
    """Two captions: "a dog" with its end, and "cat a a", cut off."""
    log_prob = torch.tensor([0.5, 0.25, 1.0, 0.1, 0.2, 0.4]).log()
    entropy = torch.tensor([1.0, 2.0, 0.0, 3.0, 4.0, 5.0])
    words = Beliefs(log_prob, entropy, entropy - 0.5, log_prob, log_prob, log_prob)
    captions = [Caption((2, 3), -2.08, True), Caption((4, 2, 2), -4.8, False)]
    return Described(captions, CaptionBeliefs(words, torch.tensor([3, 3])))


def test_the_confidence_of_a_caption_is_the_geometric_mean_of_its_words():
    described = _described()
    assert described.confidence.tolist() == pytest.approx([0.125 ** (1 / 3), 0.008 ** (1 / 3)])
    assert described.mean_entropy.tolist() == [1.0, 4.0]
    assert described.mean_information.tolist() == pytest.approx([(0.5 + 0.5 + 0.5) / 3, 0.5])


def test_the_words_of_a_caption():
    model = SimpleNamespace(vocabulary=Vocabulary(("<eos>", "<unk>", "a", "dog", "cat")))
    first, second = (caption_words(cast(Any, model), _described(), row) for row in (0, 1))
    assert [word.word for word in first] == ["a", "dog", "<eos>"]
    assert [word.word for word in second] == ["cat", "a", "a"]
    assert [word.probability for word in second] == pytest.approx([0.1, 0.2, 0.4])
    assert [word.entropy for word in first] == [1.0, 2.0, 0.0]


def test_noise_against_photos(monkeypatch):
    monkeypatch.setattr(knowledge, "describe", lambda model, noise, **options: _described())
    model = cast(TrainedCaptioner, SimpleNamespace(name="run"))
    gap = knowledge.noise_gap(model, _quality(), torch.zeros(2, 3))
    assert (gap.photos, gap.noise) == (4.5, 2.5)  # the mean of 0 to 9, and of 1 and 4
    assert gap.photos_information == 0.25
    assert gap.noise_information == pytest.approx(0.5)
    assert gap.information_auroc is None  # there are no samples
    sampled = dataclasses.replace(_quality(), samples=3)
    assert knowledge.noise_gap(model, sampled, torch.zeros(2, 3)).information_auroc == 1.0
    assert gap.auroc == pytest.approx((1.5 + 4.5) / 20)  # photos below 1, and below 4; ties half


def test_runs_on_different_images_are_not_compared():
    def model(name: str, count: int) -> TrainedCaptioner:
        entries = tuple(Captioned(f"{n}.jpg", ("a",)) for n in range(count))
        images = CaptionedImages("x", {}, lambda name: b"")
        split = Split(images, entries, torch.zeros(count, 3), ())
        return cast(TrainedCaptioner, SimpleNamespace(name=name, split=lambda _: split))

    check_same_images([model("one", 5), model("two", 5)])
    with pytest.raises(ValueError, match=r"one and two have different test images \(5 and 4\)"):
        check_same_images([model("one", 5), model("two", 4)])
