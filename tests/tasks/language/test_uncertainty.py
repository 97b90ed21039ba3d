"""The uncertainty benchmark: closed forms, the texts, and models of any kind."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from random import Random
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from bayesrnn.cli import main
from bayesrnn.data.download import cache_folder
from bayesrnn.evaluation.ranks import auroc
from bayesrnn.tasks.language.data.corpus import load_corpus, load_split
from bayesrnn.tasks.language.data.sources import find_source
from bayesrnn.tasks.language.data.text import text_files
from bayesrnn.tasks.language.evaluation import beliefs as module
from bayesrnn.tasks.language.evaluation.beliefs import beliefs, models_of
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.evaluation.uncertainty import (
    SIGNALS,
    Contender,
    Text,
    add_noise,
    benchmark,
    measure,
    reverse,
    shuffle,
    unigram_entropy,
)
from bayesrnn.tasks.language.models.ngram import NGram
from bayesrnn.tasks.language.trained import TrainedModel, open_folder, open_trained
from bayesrnn.tasks.language.uncertainty_study import study_uncertainty, subjects


class Table:
    """A language model that looks its answer up by the last word: rows of log probabilities (V, V)."""

    def __init__(self, probs: Tensor) -> None:
        self.log_probs = probs.log()
        self.asked = 0

    def next_word_log_probs(self, tokens: Tensor, state: int | None) -> tuple[Tensor, int]:
        assert (state is None) == (self.asked == 0)
        self.asked += len(tokens)
        return self.log_probs[tokens], self.asked


def _rows(seed: int, size: int = 11) -> Tensor:
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def _text(words: int, size: int = 11) -> Tensor:
    return torch.randint(size, (words + 1,), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("streams", [1, 4])
def test_entropy_of_a_uniform_model_is_log_v(streams):
    found = measure([Table(torch.full((11, 11), 1 / 11))], _text(203), 11, streams=streams)[1]
    assert found.words == 203
    assert found.entropy == pytest.approx(math.log(11), rel=1e-6)
    assert found.surprise == pytest.approx(math.log(11), rel=1e-6)
    assert found.mutual_information == 0
    windows = found.windows["entropy"]
    assert torch.allclose(windows, torch.full_like(windows, math.log(11)))


def test_averages_of_the_first_models_against_the_obvious_way(monkeypatch):
    monkeypatch.setattr(module, "PROBABILITIES_OF_A_SEGMENT", 11 * 40)  # several segments
    monkeypatch.setattr(module, "PROBABILITIES_AT_ONCE", 11 * 320)  # and several groups of them
    tables, tokens = [_rows(seed) for seed in range(5)], _text(997)
    found = measure([Table(t) for t in tables], tokens, 11, counts=[1, 3, 5], window=10, streams=3)
    x, y = tokens[:-1], tokens[1:]
    assert sorted(found) == [1, 3, 5]
    for count, result in found.items():
        own = torch.stack([table[x] for table in tables[:count]]).double()  # (S, words, V)
        mean = own.mean(0)
        entropy = -(mean * mean.log()).sum(-1)
        expected = -(own * own.log()).sum(-1).mean(0)
        surprise = -mean.gather(-1, y[:, None]).log().mean().item()
        assert result.entropy == pytest.approx(entropy.mean().item(), rel=1e-5)
        assert result.surprise == pytest.approx(surprise, rel=1e-5)
        information = (entropy - expected).mean().item()
        assert result.mutual_information == pytest.approx(information, abs=1e-6)
        # Three streams of 333, 333 and 331 words: 33 windows of ten in each.
        by_hand = entropy[:333][:330].view(33, 10).mean(1)
        windows = result.windows["entropy"]
        assert len(windows) == 99
        together = torch.cdist(windows[:, None].double(), by_hand[:, None]).amin(0)
        assert together.max() < 1e-5


def test_surprise_is_that_of_known_words():
    """Of the words that are not `<unk>`; a window of nothing but `<unk>` is beyond all others."""
    rows, tokens, unknown = _rows(0), _text(200), 3
    tokens[21:31] = unknown  # the third window
    found = measure([Table(rows)], tokens, 11, unknown=unknown, window=10, streams=1)[1]
    x, y = tokens[:-1], tokens[1:]
    surprise, known = -rows[x, y].log(), y != unknown
    assert found.unknown == pytest.approx(1 - known.double().mean().item())
    assert found.surprise == pytest.approx(surprise[known].mean().item(), rel=1e-5)
    windows = found.windows["surprise"]
    assert windows.isinf().tolist() == [place == 2 for place in range(20)]
    for place in (0, 1, 3, 19):
        own = slice(10 * place, 10 * place + 10)
        by_hand = surprise[own][known[own]].mean().item()
        assert windows[place].item() == pytest.approx(by_hand, rel=1e-5)
    # Entropy is of the prediction, which is made before it is known what the word is.
    whole = measure([Table(rows)], tokens, 11, window=10, streams=1)[1]
    assert found.entropy == whole.entropy
    assert whole.unknown == 0
    assert not whole.windows["surprise"].isinf().any()


def test_unknown_words_do_not_hide_a_foreign_text():
    """A model for which `<unk>` is easy, and known words of the other text are hard, as in real text."""
    rows = torch.full((11, 11), 0.05)
    rows[:, 3], rows[:, 10] = 0.545, 0.005
    own, foreign = _text(400, size=3), _text(400, size=3)
    foreign[::2], foreign[1::2] = 10, 3  # word 10 is rare, and every other word is unknown
    gaps = {
        unknown: benchmark(
            [Contender("table", [BatchFirst(rows)])],
            Text("true", own),
            [Text("foreign", foreign)],
            11,
            unknown=unknown,
            streams=1,
        )[0]
        for unknown in (None, 3)
    }
    assert gaps[None].auroc["surprise"] < 0.5
    assert gaps[3].auroc["surprise"] == 1
    assert gaps[3].unknown == pytest.approx(0.5)


def test_the_gap_is_the_sum_of_its_parts(trained):
    (subject,) = subjects(open_trained(trained("bbb")), split="test", data=None, words=300)
    tokens, size = subject.tokens, subject.vocabulary
    own, other = (
        {
            name: torch.cat([getattr(b[3], name)[s.counted] for s, b in found]).mean().item()
            for name in ("entropy", "expected_entropy")
        }
        for text in (tokens, reverse(tokens))
        for found in [list(beliefs(models_of(subject.trained.method, 3), text, size, streams=4))]
    )
    (gap,) = (
        gap
        for gap in study_uncertainty(subject, [Text("reversed", reverse(tokens))], [3], streams=4)
        if gap.samples == 3
    )
    assert gap.entropy_gap == pytest.approx(other["entropy"] - own["entropy"], abs=1e-5)
    expected = other["expected_entropy"] - own["expected_entropy"]
    assert gap.expected_entropy_gap == pytest.approx(expected, abs=1e-5)
    assert gap.mutual_information_gap != 0


def test_unigram_entropy_by_hand():
    assert unigram_entropy(torch.tensor([9, 1, 1, 2, 3])) == pytest.approx(1.5 * math.log(2))


class BatchFirst(Table):
    """A model that computes with the batch first and transposes its answer."""

    def next_word_log_probs(self, tokens, state):
        return self.log_probs[tokens.T].transpose(0, 1), 1

    asked = 0


def test_a_transposed_answer_is_the_same_answer():
    tables, tokens = [_rows(seed) for seed in range(2)], _text(300)
    plain = measure([Table(t) for t in tables], tokens, 11, streams=4)[2]
    turned = measure([BatchFirst(t) for t in tables], tokens, 11, streams=4)[2]
    assert turned.entropy == plain.entropy
    assert turned.mutual_information == plain.mutual_information > 0


def test_a_window_must_fit_the_text():
    for window, words in [(0, 50), (51, 50), (101, 500)]:
        with pytest.raises(ValueError, match=f"window = {window}"):
            measure([Table(_rows(0))], _text(words), 11, window=window)


def test_few_of_sglds_samples_are_the_first_of_many(trained):
    run = open_folder(trained("sgld"))
    method_, tokens, size = run.load(), _split(run), len(run.vocabulary)
    many = measure(models_of(method_, 3), tokens, size, counts=[1, 3])
    one = measure(models_of(method_, 1), tokens, size)
    assert many[1].entropy == one[1].entropy


def test_variational_dropout_keeps_its_masks_however_the_text_is_split(trained):
    run = open_folder(trained("variational-dropout"))
    method_, tokens = run.load(), _split(run)
    values = [
        perplexity(method_, tokens, streams=2, samples=2, steps=steps).nats for steps in (7, 50)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    found = measure(models_of(method_, 2), tokens, len(run.vocabulary), streams=2)[2]
    assert found.surprise == pytest.approx(values[0] / found.words, rel=1e-5)


def test_a_word_without_probability_adds_no_entropy():
    rows = torch.zeros(11, 11)
    rows[:, :2] = 0.5
    tokens = torch.zeros(41, dtype=torch.long)
    found = measure([Table(rows), Table(rows)], tokens, 11, counts=[1, 2])
    for result in found.values():
        assert result.entropy == pytest.approx(math.log(2), rel=1e-6)
    with pytest.raises(ValueError, match="not numbers"):
        measure([Table(torch.full((11, 11), torch.nan))], tokens, 11)


def test_a_methods_surprise_is_its_perplexity(trained):
    for method in ("bbb", "dropout", "sgld", "lstm"):
        run = open_folder(trained(method))
        method_ = run.load()
        tokens = _split(run)
        rest = measure(models_of(method_), tokens, len(run.vocabulary), streams=4)
        (found,) = rest.values()
        expected = perplexity(method_, tokens, streams=4)
        assert found.words == expected.words
        assert found.surprise == pytest.approx(expected.nats / expected.words, rel=1e-5)
        if method in ("bbb", "sgld"):  # dropout's masks depend on how the text is split
            sampled = measure(models_of(method_, 3, 7), tokens, len(run.vocabulary), streams=4)[3]
            expected = perplexity(method_, tokens, streams=4, samples=3, seed=7)
            assert sampled.surprise == pytest.approx(expected.nats / expected.words, rel=1e-5)
            assert sampled.mutual_information > 0


def test_memory_does_not_grow_with_samples_or_text(trained, monkeypatch):
    """Counts all tensors of probabilities that are alive at the same time."""
    run = open_folder(trained("bbb"))
    method_, size = run.load(), len(run.vocabulary)
    monkeypatch.setattr(module, "PROBABILITIES_OF_A_SEGMENT", size * 4)
    monkeypatch.setattr(module, "PROBABILITIES_AT_ONCE", size * 64)
    most: list[int] = []
    living: WeakSet = WeakSet()

    class Watched(module.BeliefSum):
        def add(self, log_probs):
            super().add(log_probs)
            living.add(self)
            most.append(sum(total.distributions.probs.numel() for total in living))

    monkeypatch.setattr(module, "BeliefSum", Watched)
    peaks = []
    for samples, tokens in [(2, _split(run)[:200]), (6, _split(run))]:
        most.clear()
        measure(models_of(method_, samples), tokens, size, streams=2, window=1)
        peaks.append(max(most))
    assert peaks[0] == peaks[1] <= size * 64


def _split(run: TrainedModel) -> Tensor:
    return load_split(text_files(Path(run.config.data)), "test", run.vocabulary, cache_folder())


# ---------------------------------------------------------------------- the texts


def test_the_texts_are_what_they_say():
    tokens = torch.tensor([0, 5, 6, 7, 0, 8, 9, 0])
    assert reverse(tokens).tolist() == [0, 9, 8, 0, 7, 6, 5, 0]
    mixed = shuffle(tokens, seed=3)
    assert mixed[0] == 0
    assert sorted(mixed.tolist()) == sorted(tokens.tolist())
    long = torch.arange(5001)
    assert not torch.equal(shuffle(long)[1:], long[1:])
    assert torch.equal(add_noise(long, 0.0), long)
    for rate in (0.1, 0.5):
        noisy = add_noise(long, rate)
        replaced = (noisy != long).float().mean().item()
        error = math.sqrt(rate * (1 - rate) / 5000)
        assert abs(replaced - rate) < 4 * error + 1 / 5000
        assert torch.equal(noisy, add_noise(long, rate))
    with pytest.raises(ValueError, match="noise = 1.5"):
        add_noise(long, 1.5)


def test_the_penn_treebank_reversed_begins_as_in_the_paper(ptb, tmp_path):
    corpus = load_corpus(find_source(str(ptb), tmp_path), None, tmp_path)
    backwards = reverse(corpus.test)
    assert len(backwards) == 82_430 + 1
    words = [corpus.vocabulary.words[token] for token in backwards[:9].tolist()]
    assert words == ["<eos>", "us", "with", "here", "them", "see", "not", "may", "we"]


# ---------------------------------------------------------------------- gaps


def test_auroc_against_every_pair():
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(60, generator=generator).round(decimals=1)
    outside = (torch.randn(45, generator=generator) + 0.7).round(decimals=1)
    higher = (outside[:, None] > inside).double().mean()
    equal = (outside[:, None] == inside).double().mean()
    assert equal > 0
    assert auroc(inside, outside) == pytest.approx((higher + equal / 2).item())
    assert auroc(inside * 1e4, outside * 1e4) == pytest.approx(auroc(inside, outside))
    assert auroc(torch.zeros(3), torch.zeros(4)) == 0.5


@pytest.fixture(scope="session")
def counting(tmp_path_factory):
    """Two languages: one counts upwards with jumps, and whoever has just jumped jumps on; one is its reverse.

    Only who looks at the last two words can tell the way: the gap of a bigram model is 0.
    """
    random = Random(0)
    folder = tmp_path_factory.mktemp("counting")
    for split, lines in [("train", 500), ("valid", 60), ("test", 60)]:
        text = []
        for _ in range(lines):
            line, jumped = [random.randrange(8)], True
            while len(line) < 12:
                jumped = random.random() < (0.7 if jumped else 0.1)
                line.append(random.randrange(8) if jumped else (line[-1] + 1) % 8)
            text.append([f"w{number}" for number in line])
        for name, step in [("up", 1), ("down", -1)]:
            (folder / name).mkdir(exist_ok=True)
            written = "".join(" ".join(line[::step]) + "\n" for line in text[::step])
            (folder / name / f"{split}.txt").write_text(written)
    return folder


def test_a_model_trained_on_reversed_text_has_a_negative_gap(counting, tmp_path, capsys):
    for name in ("up", "down"):
        options = "--method bbb --hidden 24 --epochs 8 --batch-size 4 --unroll 12 --no-tensorboard"
        main(f"train --data {counting / name} {options} --run {tmp_path / name} --json".split())
    capsys.readouterr()
    command = [
        "uncertainty",
        str(tmp_path / "up"),
        str(tmp_path / "down"),
        "--samples",
        "3",
        "--json",
    ]
    main([*command, "--data", str(counting / "up"), "--other", str(counting / "down")])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    gaps = {(row["model"], row["samples"], row["text"]): row for row in rows}
    for samples in (0, 3):
        up, down = gaps["up", samples, "reversed"], gaps["down", samples, "reversed"]
        assert up["entropy_gap"] > 0.1
        assert down["entropy_gap"] < -0.1
        assert up["auroc"]["entropy"] > 0.6
        assert down["auroc"]["entropy"] < 0.4
        # The other domain is the same text the other way round, so the gaps are the same.
        assert gaps["up", samples, "down"]["entropy_gap"] == pytest.approx(up["entropy_gap"])


def test_ngrams_by_hand():
    tokens = torch.tensor([0, 1, 2, 1, 2, 1, 3, 0])
    model = NGram(tokens, 5, order=2)
    log_probs, state = model.next_word_log_probs(torch.tensor([[1], [4]]), None)
    # After none: 1 three times, 2 twice, 3 and 0 once, seven words in all of four kinds.
    unigram = torch.tensor([0.25, 2.25, 1.25, 0.25, 0]) / 7 + 0.75 * 4 / 7 / 5
    after_1 = torch.tensor([0, 0, 1.25, 0.25, 0]) / 3 + 0.75 * 2 / 3 * unigram
    torch.testing.assert_close(log_probs[0, 0].exp(), after_1)
    torch.testing.assert_close(log_probs[1, 0].exp(), unigram)  # 4 was never seen
    assert state.tolist() == [[4]]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_ngrams_read_on_from_their_state(order):
    tokens = _text(400)
    model = NGram(tokens, 11, order=order)
    x = tokens[:20].view(10, 2)
    whole, last = model.next_word_log_probs(x, None)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(10, 2))
    first, state = model.next_word_log_probs(x[:3], None)
    second, end = model.next_word_log_probs(x[3:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert torch.equal(last, end)


def test_any_model_can_be_benchmarked(text_folder, tmp_path):
    """An n-gram model of a language in which each word mostly decides the next: it knows its own text."""
    corpus = load_corpus(text_files(text_folder), None, tmp_path)
    size = len(corpus.vocabulary)
    contenders = [
        Contender("bigram", [NGram(corpus.train, size, order=2)]),
        Contender("three", [NGram(corpus.train, size, order=n) for n in (1, 2, 3)], counts=[1, 3]),
    ]
    corrupted = [Text("reversed", reverse(corpus.test)), Text("noise", add_noise(corpus.test, 0.5))]
    gaps = benchmark(contenders, Text("true", corpus.test), corrupted, size, streams=2)
    by_name = {(gap.model, gap.samples, gap.text): gap for gap in gaps}
    assert len(by_name) == 2 + 4
    bigram = by_name["bigram", 0, "reversed"]
    assert bigram.surprise_gap > 0.5
    assert bigram.auroc["surprise"] > 0.9
    assert bigram.mutual_information_gap == 0
    assert by_name["three", 1, "reversed"].entropy_gap == pytest.approx(0, abs=1e-6)  # unigram
    assert by_name["three", 3, "noise"].auroc.keys() == set(SIGNALS)


def test_a_hugging_face_model_can_be_benchmarked():
    """Built from a config: nothing is downloaded. In a process of its own: it warns as it is imported."""
    program = """
import sys, torch
sys.path.insert(0, "examples")
from uncertainty import HuggingFace
from transformers import GPT2Config, GPT2LMHeadModel
from bayesrnn.tasks.language.evaluation.uncertainty import measure
torch.manual_seed(0)
small = dict(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)
config = GPT2Config(**small, bos_token_id=0, eos_token_id=0)
model = HuggingFace(GPT2LMHeadModel(config))
tokens = torch.randint(50, (301,))
with torch.no_grad():
    x = tokens[:100].view(50, 2)
    whole, _ = model.next_word_log_probs(x, None)
    first, state = model.next_word_log_probs(x[:16], None)
    second, _ = model.next_word_log_probs(x[16:], state)
    alone = model.model(input_ids=x[:16].T).logits.log_softmax(-1).transpose(0, 1)
assert torch.allclose(first, alone, atol=1e-5)
assert torch.allclose(torch.cat([first, second]), whole, atol=1e-5)
found = measure([model], tokens, 50, streams=3)[1]
assert found.words == 300 and 3.5 < found.entropy < 3.92
print("entered")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "entered", done.stderr


def test_counts_must_fit_the_models():
    for counts in ([0, 1], [3], []):
        with pytest.raises(ValueError, match="counts"):
            list(beliefs([Table(_rows(0))] * 2, _text(50), 11, counts=counts))
