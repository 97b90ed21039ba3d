"""The captioner: padding has no part in anything, and decoding sees what training saw."""

from __future__ import annotations

import math

import pytest
import torch

from bayesrnn import init, methods
from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.ensemble import log_softmax
from bayesrnn.posterior import Posterior
from bayesrnn.tasks.captions.config import preset
from bayesrnn.tasks.captions.data.captioned import Captioned
from bayesrnn.tasks.captions.data.encoded import encode, encode_tokens
from bayesrnn.tasks.captions.evaluation.words import word_beliefs
from bayesrnn.tasks.captions.model import PADDING, Captioner
from bayesrnn.tasks.captions.task import CaptionTask, build_method
from bayesrnn.training.experiment import Part
from bayesrnn.variational.priors import ScaleMixture

END = 0


def captioner(vocabulary: int = 11, dropout: float = 0.0) -> Captioner:
    model = Captioner(7, vocabulary, 5, 6, dropout)
    init.uniform_(model, 0.5, generator=torch.Generator().manual_seed(0))
    return model.double()


def captions(count: int = 13):
    """Captions of 0 to 9 words, for five images."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 10, (count,), generator=generator).tolist()
    lines = [torch.randint(1, 11, (n,), generator=generator).tolist() for n in lengths]
    image = torch.randint(5, (count,), generator=generator)
    features = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    return encode_tokens(lines, image, features, END)


def test_the_loss_is_the_sum_over_words_one_caption_at_a_time():
    model, encoded = captioner(), captions()
    expected = 0.0
    for row in range(len(encoded)):
        state = model.begin(encoded.features[encoded.image[row]][None])
        last = torch.tensor([[END]])
        for word in encoded.y[row, : encoded.lengths[row]].tolist():
            logits, state = model(last, state)
            expected -= log_softmax(logits)[0, 0, word].item()
            last = torch.tensor([[word]])
    batch = encoded.batch(encoded.image, encoded.y)
    assert model.nats(*batch).item() == pytest.approx(expected, rel=1e-12)


def _further(batch, steps: int = 4):
    """The same batch, padded further; what stands in x at padding is arbitrary."""
    features, x, y = batch
    return (
        features,
        torch.cat([x, torch.randint(11, (steps, x.shape[1]))]),
        torch.cat([y, torch.full((steps, y.shape[1]), PADDING)]),
    )


def test_a_batch_padded_further_has_the_same_loss_and_gradients():
    model, encoded = captioner(), captions()
    batch = encoded.batch(encoded.image, encoded.y)
    gradients = []
    for padded in (batch, _further(batch)):
        model.zero_grad()
        loss = model.nats(*padded)
        loss.backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    assert torch.equal(gradients[0] != 0, gradients[1] != 0)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-13)


def test_a_batch_padded_further_has_the_same_posterior_gradients():
    """The noise and the KL know nothing of padding either."""
    encoded, found = captions(), []
    for pad in (lambda batch: batch, _further):
        model = captioner()
        posterior = Posterior(model, ScaleMixture(0.5, 1.0, 0.01), sigma_init=0.1)
        batch = pad(encoded.batch(encoded.image, encoded.y))
        posterior.backward(
            lambda m=model, b=batch: m.nats(*b),
            kl_weight=0.1,
            generator=torch.Generator().manual_seed(3),
        )
        found.append((posterior.mu.grad, posterior.rho.grad))
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


def test_beliefs_about_words_do_not_depend_on_what_they_are_batched_with(monkeypatch):
    model, encoded = captioner(), captions()
    whole = word_beliefs(model, [torch.no_grad], encoded, 11)
    monkeypatch.setattr("bayesrnn.tasks.captions.evaluation.words.PROBABILITIES_AT_ONCE", 11)
    alone = word_beliefs(model, [torch.no_grad], encoded, 11)
    for name in ("log_prob", "entropy", "confidence", "brier"):
        torch.testing.assert_close(getattr(whole.words, name), getattr(alone.words, name))
    nats = model.nats(*encoded.batch(encoded.image, encoded.y)).item()
    assert whole.nats == pytest.approx(nats)
    assert -whole.log_prob().sum().item() == pytest.approx(nats)
    assert whole.perplexity == pytest.approx(math.exp(nats / encoded.words))
    starts = encoded.lengths.cumsum(0) - encoded.lengths
    third = encoded.batch(encoded.image[2:3], encoded.y[2:3])
    first_word = log_softmax(model.word_logits(*third))[0, encoded.y[2, 0]]
    assert whole.words.log_prob[starts[2]].item() == pytest.approx(first_word.item())


@pytest.mark.parametrize("count", [1, 12, 13, 100])
def test_one_pass_of_captions_pays_the_kl_once_and_counts_every_word_once(count):
    encoded = captions(count)
    config = preset("shapes", "bbb", batch_size=4, hidden=6, embedding=5, feature_size=7)
    task = CaptionTask(config, encoded, encoded, 11)

    class Recorder:
        def __init__(self) -> None:
            self.model = captioner()
            self.weights: list[float] = []

        def step(self, closure, *, kl_weight, generator):
            self.weights.append(kl_weight)
            return methods.StepResult(closure())

    recorder = Recorder()
    task.begin_epoch(0)
    done = [task.step(recorder, index, Part(), None) for index in range(len(task))]  # pyright: ignore
    assert sum(recorder.weights) * config.batch_size == pytest.approx(1)
    assert sum(minibatch.items for minibatch in done) == task.items == encoded.words
    nats = sum(minibatch.loss.item() for minibatch in done) * config.batch_size
    assert nats == pytest.approx(
        recorder.model.nats(*encoded.batch(encoded.image, encoded.y)).item()
    )
    for minibatch in done:
        assert minibatch.units * config.batch_size == pytest.approx(minibatch.items)


def test_the_softmax_bias_is_an_ordinary_parameter():
    method = build_method(preset("shapes", "bbb", feature_size=7, hidden=6, embedding=5), 11)
    assert method.posterior is not None
    names = {slot.name for slot in method.posterior.layout}
    assert "out.bias" not in names
    assert {"image.weight", "embedding.weight", "lstm.weight_hh_l0", "out.weight"} <= names


def test_a_caption_that_was_cut_off_has_no_end():
    lines, image = [[3, 4], [5]], torch.tensor([0, 1])
    encoded = encode_tokens(lines, image, torch.zeros(2, 7), END, [False, True])
    assert encoded.lengths.tolist() == [2, 2]
    assert encoded.y.tolist() == [[3, 4, PADDING], [5, END, PADDING]]
    _, x, y = encoded.batch(encoded.image, encoded.y)
    assert x.T.tolist() == [[END, 3], [END, 5]]
    assert y.T.tolist() == [[3, 4], [5, END]]


def test_the_mark_of_the_end_inside_a_caption_is_an_unknown_word():
    words = Vocabulary(("<eos>", "<unk>", "a", "dog"))
    split = [Captioned("x.jpg", ("a <eos> dog", "a <unk> cat"))]
    encoded = encode(split, torch.zeros(1, 7), words)
    assert encoded.y.tolist() == [[2, 1, 3, 0], [2, 1, 1, 0]]
