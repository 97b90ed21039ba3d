"""Decoding: greedy and by beam, against an exhaustive search."""

from __future__ import annotations

import itertools

import pytest
import torch

from bayesrnn import init
from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.posterior import Posterior
from bayesrnn.tasks.captions.data.encoded import encode_tokens
from bayesrnn.tasks.captions.evaluation import decoding
from bayesrnn.tasks.captions.evaluation.decoding import decode
from bayesrnn.tasks.captions.evaluation.words import word_beliefs
from bayesrnn.variational.priors import Normal
from tests.tasks.captions.test_model import captioner

WORDS = Vocabulary(("<eos>", "<unk>", "a", "dog", "cat"))


def _model():
    """A captioner whose captions have many lengths (found by trying seeds)."""
    model = captioner(len(WORDS))
    init.uniform_(model, 3.0, generator=torch.Generator().manual_seed(5))
    return model


def _members(model, samples: int):
    if samples == 0:
        return [torch.no_grad]
    posterior = Posterior(model, Normal(1.0), sigma_init=0.4)
    return [
        lambda s=s: posterior.sample(generator=torch.Generator().manual_seed(s))
        for s in range(samples)
    ]


def _features(images: int = 40):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(images, 7, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("samples", [0, 3])
def test_a_caption_has_the_log_probability_that_the_loss_computes(samples):
    model, features = _model(), _features()
    members = _members(model, samples)
    for beam in (1, 3):
        found = decode(model, members, features, WORDS, beam=beam, longest=20)
        lines, ended = [c.tokens for c in found], [c.ended for c in found]
        assert len({len(line) for line, end in zip(lines, ended, strict=True) if end}) > 2
        image = torch.arange(len(lines))
        encoded = encode_tokens(lines, image, features, WORDS.end, ended)
        sums = word_beliefs(model, members, encoded, len(WORDS)).log_prob()
        assert [caption.log_prob for caption in found] == pytest.approx(sums.tolist(), rel=1e-9)


@pytest.mark.parametrize("samples", [0, 3])
def test_a_beam_of_one_takes_the_likeliest_word_each_time(samples):
    model, features = _model(), _features()
    members = _members(model, samples)
    for row, caption in enumerate(decode(model, members, features, WORDS, beam=1, longest=20)):
        tokens: list[int] = []
        while len(tokens) < 20:
            # The likeliest next word is the one whose caption so far, plus that word, is likeliest.
            nexts = [[*tokens, word] for word in range(len(WORDS)) if word != WORDS.unknown]
            encoded = encode_tokens(
                nexts, torch.zeros(len(nexts), dtype=torch.long), features[row : row + 1], WORDS.end
            )
            beliefs = word_beliefs(model, members, encoded, len(WORDS))
            last = beliefs.lengths.cumsum(0) - 2  # the word before the added end
            word = nexts[int(beliefs.words.log_prob[last].argmax())][-1]
            if word == WORDS.end:
                break
            tokens.append(word)
        assert caption.tokens == tuple(tokens)


def test_a_wider_beam_is_never_less_likely_and_a_very_wide_one_is_exact():
    model, features = _model(), _features()
    members = [torch.no_grad]
    found = {
        beam: decode(model, members, features, WORDS, beam=beam, longest=4)
        for beam in (1, 2, 3, 200)
    }
    for beam in (2, 3, 200):
        for wide, greedy in zip(found[beam], found[1], strict=True):
            assert wide.log_prob >= greedy.log_prob
    assert any(w.log_prob > g.log_prob for w, g in zip(found[3], found[1], strict=True))
    # All captions of up to three words with their end, and of four words cut off.
    kinds = [w for w in range(len(WORDS)) if w not in (WORDS.end, WORDS.unknown)]
    lines = [list(line) for n in range(5) for line in itertools.product(kinds, repeat=n)]
    for row, caption in enumerate(found[200]):
        image = torch.zeros(len(lines), dtype=torch.long)
        encoded = encode_tokens(lines, image, features[row : row + 1], WORDS.end)
        beliefs = word_beliefs(model, members, encoded, len(WORDS))
        whole = beliefs.log_prob()
        ends = beliefs.words.log_prob[beliefs.lengths.cumsum(0) - 1].double()
        cut = torch.tensor([len(line) == 4 for line in lines])
        best = torch.where(cut, whole - ends, whole).max().item()
        assert caption.log_prob == pytest.approx(best, rel=1e-9)


def test_a_narrow_beam_that_loses_the_greedy_caption_is_not_worse():
    """Beam search alone can end with a less likely caption than greedy decoding."""
    model, members = captioner(len(WORDS)).float(), [torch.no_grad]
    init.uniform_(model, 2.0, generator=torch.Generator().manual_seed(2))
    model.double()
    features = _features(500)
    with torch.no_grad():
        alone, greedy = (
            decoding._search([(model, torch.no_grad)], features, WORDS, beam, 20) for beam in (2, 1)
        )
    worse = [n for n in range(500) if alone[n].log_prob < greedy[n].log_prob - 1e-9]
    assert worse, "the seeds should give an example"
    both = decode(model, members, features[worse], WORDS, beam=2, longest=20)
    for n, caption in zip(worse, both, strict=True):
        assert caption.log_prob == pytest.approx(greedy[n].log_prob)


def test_weights_that_do_not_fit_in_memory_are_drawn_again(monkeypatch):
    model, features = _model(), _features()
    members = _members(model, 3)
    held = decode(model, members, features, WORDS, beam=3)
    monkeypatch.setattr(decoding, "WEIGHTS_AT_ONCE", 1)
    assert decode(model, members, features, WORDS, beam=3) == held
    mean = decode(model, [torch.no_grad], features, WORDS, beam=3)
    assert [caption.tokens for caption in mean] != [caption.tokens for caption in held]


def test_the_unknown_word_is_never_said_and_long_captions_are_cut_off():
    model = _model()
    with torch.no_grad():
        model.out.bias[WORDS.unknown] = 50.0
        model.out.bias[WORDS.end] = -50.0
    (caption,) = decode(model, [torch.no_grad], _features(1), WORDS, beam=3, longest=6)
    assert len(caption.tokens) == 6
    assert not caption.ended
    assert WORDS.unknown not in caption.tokens
    assert caption.text(WORDS).split()[0] in ("a", "dog", "cat")


def test_bad_input():
    with pytest.raises(ValueError, match="beam = 0"):
        decode(_model(), [torch.no_grad], _features(1), WORDS, beam=0)
    with pytest.raises(ValueError, match="no weights"):
        decode(_model(), [], _features(1), WORDS)
