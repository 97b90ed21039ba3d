"""Every word is scored once; Monte Carlo takes one pass; dynamic evaluation never sees a word in advance."""

from __future__ import annotations

import hashlib
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bayesrnn.cli import main
from bayesrnn.data.download import cache_folder
from bayesrnn.methods.point_estimate import PointEstimate
from bayesrnn.tasks.language.data.corpus import load_corpus, load_split
from bayesrnn.tasks.language.data.sources import find_source
from bayesrnn.tasks.language.evaluation.perplexity import make_scorer, perplexity
from bayesrnn.tasks.language.evaluation.scoring import (
    Adaptation,
    Dynamic,
    Ensemble,
    SharpenedBound,
    segments,
)
from bayesrnn.tasks.language.evaluation.words import score_words
from bayesrnn.tasks.language.models.word_lm import WordLM
from bayesrnn.tasks.language.trained import TrainedModel, open_folder
from bayesrnn.training.experiment import experiment


def _tokens(run: TrainedModel, split: str = "test") -> torch.Tensor:
    return load_split(
        find_source(run.config.data, cache_folder()), split, run.vocabulary, cache_folder()
    )


def _log_probs(scorer, tokens, *, streams=1, steps=35) -> torch.Tensor:
    """The score of every word in the order of the text."""
    parts = [
        (scorer.score(s).log_probs, s.counted)
        for s in segments(tokens, streams=streams, steps=steps)
    ]
    scores, counted = (torch.cat(column).T for column in zip(*parts, strict=True))  # (N, T)
    return scores[counted]


class Unigram(nn.Module):
    """Always the same distribution."""

    def __init__(self, probs: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(probs.log())

    def forward(self, x, state=None):
        return self.logits.expand(*x.shape, -1), (torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("streams", [1, 2, 7, 50])
@pytest.mark.parametrize("steps", [1, 13, 1000])
def test_segments_cover_each_word_once_in_order(streams, steps):
    tokens = torch.arange(101)
    ys = [(s.y, s.counted, s.x) for s in segments(tokens, streams=streams, steps=steps)]
    y, counted, x = (torch.cat(column).T for column in zip(*ys, strict=True))
    assert torch.equal(y[counted], tokens[1:])
    assert torch.equal(x[counted], tokens[:-1])


def test_a_unigram_model_has_the_cross_entropy_computed_by_hand(ptb):
    corpus = load_corpus(find_source(str(ptb), cache_folder()), None, cache_folder())
    counts = torch.bincount(corpus.train[1:].long(), minlength=10_000).double()
    model = Unigram((counts / counts.sum()).float())
    result = perplexity(PointEstimate(model), corpus.test, streams=20)
    test = torch.bincount(corpus.test[1:].long(), minlength=10_000).double()
    by_hand = -(test / test.sum() * (counts / counts.sum()).log()).sum().item()
    assert result.words == 82_430
    assert result.nats / result.words == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("method", ["lstm", "bbb"])
def test_perplexity_does_not_depend_on_the_length_of_segments(trained, method):
    run = open_folder(trained(method))
    method_, tokens = run.load(), _tokens(run)
    whole = perplexity(method_, tokens, steps=10_000)
    assert whole.words == len(tokens) - 1
    for steps in (1, 7, 100):
        in_segments = perplexity(method_, tokens, steps=steps)
        assert in_segments.value == pytest.approx(whole.value, rel=1e-5)


def _forgetful() -> WordLM:
    """A language model that forgets quickly: its forget gates are at most a tenth."""
    torch.manual_seed(0)
    model = WordLM(20, 8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.05 if "weight_hh" in name else 0.7)
            if "bias_ih" in name:
                parameter[8:16] -= 5  # the forget gate
    return model


def test_streams_lose_only_the_context_at_their_start():
    """With N streams, scores differ from those with one stream only just after the N - 1 stream starts."""
    model, tokens = _forgetful(), torch.randint(0, 20, (2001,))
    one = _log_probs(Ensemble(model, [nullcontext]), tokens)
    for streams in (2, 5, 20):
        many = _log_probs(Ensemble(model, [nullcontext]), tokens, streams=streams)
        assert len(many) == len(one)
        length = -(-len(one) // streams)
        since = torch.arange(len(one)) % length  # since the last stream start
        since[:length] = length  # the first stream begins as the whole does
        torch.testing.assert_close(many[since > 12], one[since > 12], rtol=0, atol=1e-5)
        assert (many[since == 0] - one[since == 0]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["bbb", "sharpened", "dropout", "variational-dropout", "sgld"])
def test_monte_carlo_in_one_pass_is_as_many_separate_passes(trained, method):
    run = open_folder(trained(method))
    method_, tokens = run.load(), _tokens(run)
    samples = 2
    together = _log_probs(Ensemble(method_.model, method_.members(samples, 3)), tokens)
    separate = torch.stack(
        [
            _log_probs(Ensemble(method_.model, [member]), tokens)
            for member in method_.members(samples, 3)
        ]
    )
    assert not torch.equal(separate[0], separate[1])
    averaged = separate.logsumexp(0) - math.log(samples)
    torch.testing.assert_close(together, averaged, rtol=1e-5, atol=1e-5)
    result = perplexity(method_, tokens, samples=samples, seed=3, steps=35)
    assert result.nats == pytest.approx(-averaged.double().sum().item(), rel=1e-5)


def test_evaluation_leaves_the_random_state_and_the_mode_alone(trained):
    run = open_folder(trained("dropout"))
    method_, tokens = run.load(), _tokens(run)
    method_.model.train()
    state = torch.get_rng_state()
    perplexity(method_, tokens, samples=2)
    assert torch.equal(state, torch.get_rng_state())
    assert method_.model.training


# ---------------------------------------------------------------------- dynamic evaluation


def _drifting(vocabulary: int, words: int) -> torch.Tensor:
    """A text that repeats one pattern, where dynamic evaluation helps."""
    return torch.arange(5).repeat(words // 5 + 1)[: words + 1] + vocabulary // 2


def test_dynamic_evaluation_learns_a_text_that_repeats_itself(trained):
    run = open_folder(trained("bbb"))
    method_ = run.load()
    tokens = _drifting(len(run.vocabulary), 600)
    static = perplexity(method_, tokens, steps=10).value
    dynamic = perplexity(method_, tokens, steps=10, dynamic=Adaptation(lr=0.1)).value
    assert dynamic < 0.7 * static
    assert perplexity(method_, tokens, steps=10).value == pytest.approx(static)  # restored


WAYS = [
    ("sharpened", {}),
    ("sharpened", {"samples": 2}),
    ("sharpened", {"sharpened": True}),
    ("sgld", {}),
    ("sgld", {"samples": 2}),
    ("dropout", {"samples": 2}),
    ("variational-dropout", {"samples": 2}),
]


@pytest.mark.parametrize(("method", "way"), WAYS, ids=str)
def test_every_way_of_predicting_can_be_dynamic(trained, method, way):
    run = open_folder(trained(method))
    method_, tokens = run.load(), _drifting(20, 300)
    before = {k: v.clone() for k, v in method_.state_dict().items()}
    static = perplexity(method_, tokens, steps=10, **way).value
    assert (
        perplexity(method_, tokens, steps=10, dynamic=Adaptation(lr=0.1), **way).value
        < 0.95 * static
    )
    assert all(torch.equal(v, before[k]) for k, v in method_.state_dict().items())


@pytest.mark.parametrize("method", ["bbb", "lstm"])
def test_words_may_have_their_own_learning_rates_in_dynamic_evaluation(trained, method):
    run = open_folder(trained(method))
    method_ = run.load()
    (segment,) = segments(_drifting(20, 10), streams=1, steps=10)
    rates = {"out.weight": torch.rand(len(run.vocabulary), 1)}
    before = {name: weight.detach().clone() for name, weight in method_.weights().items()}

    def moved(rates):
        scorer = make_scorer(method_, samples=0, sharpened=False, seed=0)
        dynamic = Dynamic(method_, scorer, Adaptation(lr=0.1, clip=0.5, rates=rates))
        dynamic.score(segment)
        after = {name: weight.detach().clone() for name, weight in method_.weights().items()}
        dynamic.restore()
        return {name: after[name] - before[name] for name in after}

    one_rate, many = moved({}), moved(rates)
    assert one_rate["out.weight"].abs().max() > 0
    for name, step in one_rate.items():
        torch.testing.assert_close(many[name], step * rates.get(name, 1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("options", ["", "--train-words 500", "--tied"])
def test_rare_words_have_the_rates_that_training_would_give_them(options, text_folder, tmp_path):
    how = (
        "--rare-words 0.5 --hidden 4 --epochs 1 --batch-size 4 --unroll 10 --no-tensorboard --json"
    )
    main(f"train --data {text_folder} --run {tmp_path / 'run'} {how} {options}".split())
    model = open_folder(tmp_path / "run")
    task = experiment("language").prepare(model.config, model.run).task
    adaptation = model.adaptation(lr=0.1, rare_words=0.5, decay=0.0)
    assert adaptation.rates.keys() == task.rates().keys()
    for name, rate in task.rates().items():
        assert len(rate.unique()) > 1
        torch.testing.assert_close(adaptation.rates[name], rate, rtol=0, atol=0)
    method_ = model.load()
    Dynamic(method_, make_scorer(method_, samples=0, sharpened=False, seed=0), adaptation)


def test_rates_of_no_weight_are_an_error(trained):
    method_ = open_folder(trained("lstm")).load()
    scorer = make_scorer(method_, samples=0, sharpened=False, seed=0)
    with pytest.raises(ValueError, match="no weight is called decoder"):
        Dynamic(method_, scorer, Adaptation(rates={"decoder": torch.ones(1)}))


def test_dynamic_evaluation_forgets_by_its_decay(trained):
    run = open_folder(trained("bbb"))
    method_ = run.load()
    first, second = segments(_drifting(20, 20), streams=1, steps=10)

    def moved(decay, *parts):
        scorer = make_scorer(method_, samples=0, sharpened=False, seed=0)
        dynamic = Dynamic(method_, scorer, Adaptation(lr=0.1, decay=decay))
        weight = method_.weights()["lstm.weight_hh_l0"]
        before, places = weight.detach().clone(), []
        for part in parts:
            dynamic.score(part)
            places.append(weight.detach() - before)
        dynamic.restore()
        return places

    (once,) = moved(0.25, first)
    torch.testing.assert_close(once, moved(0.0, first)[0])  # nothing to forget yet
    without, with_ = moved(0.0, first, second), moved(0.25, first, second)
    # The second gradient is taken at the same weights.
    torch.testing.assert_close(with_[1], without[1] - 0.25 * once, rtol=1e-3, atol=1e-7)


def test_dynamic_evaluation_takes_one_stream_only(trained):
    method_ = open_folder(trained("bbb")).load()
    with pytest.raises(ValueError, match="2 streams would learn from later text"):
        perplexity(method_, torch.arange(20), dynamic=Adaptation(lr=0.1), streams=2)


@pytest.mark.parametrize("position", [35, 60, 99])
def test_no_word_is_seen_before_it_is_scored(trained, position):
    """Replacing a word changes its own score and later ones, but no score before it."""
    run = open_folder(trained("bbb"))
    tokens = _tokens(run)[:140].clone()
    planted = tokens.clone()
    planted[position] = (planted[position] + 1) % len(run.vocabulary)
    scores = []
    for text in (tokens, planted):
        method_ = run.load()
        scores.append(
            _log_probs(
                Dynamic(method_, Ensemble(method_.model, method_.resting()), Adaptation(lr=0.5)),
                text,
                steps=7,
            )
        )
    same = scores[0] == scores[1]
    assert same[: position - 1].all()  # word i of the text is score i - 1
    assert not same[position - 1]
    assert not same[position + 20 :].any()  # it was learnt from afterwards


def test_dynamic_evaluation_leaves_the_run_on_disk_alone(trained):
    folder = trained("bbb")

    def contents():
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

    before = contents()
    main(["evaluate", str(folder), "--dynamic", "--samples", "2", "--json"])
    assert contents() == before


# ---------------------------------------------------------------------- sharpening


def test_the_sharpened_score_is_a_bound_with_its_kl(trained):
    run = open_folder(trained("sharpened"))
    method_, tokens = run.load(), _tokens(run)
    at_mean = perplexity(method_, tokens, streams=8)
    bound = perplexity(method_, tokens, streams=8, steps=10, sharpened=True)
    assert bound.is_bound
    assert not at_mean.is_bound
    assert bound.words == at_mean.words == len(tokens) - 1
    assert bound.value == pytest.approx(at_mean.value, rel=0.1)
    scorer = SharpenedBound(method_.sharpened, 0)
    nats = kl = 0.0
    for segment in segments(tokens, streams=8, steps=10):
        scores = scorer.score(segment)
        nats -= scores.log_probs[segment.counted].double().sum().item()
        kl += scores.kl_theta
    assert kl > 0
    assert bound.nats == pytest.approx(nats + kl, rel=1e-9)
    with torch.no_grad():
        method_.sharpened.kappa.zero_()
        assert SharpenedBound(method_.sharpened, 0).score(segment).kl_theta == 0
        # A step of nothing, and no noise: the mean itself.
        still = perplexity(method_, tokens, streams=8, steps=10, sharpened=True, noise=False)
    assert still.nats == pytest.approx(at_mean.nats, rel=1e-5)
    assert not still.is_bound


def test_impossible_evaluations_raise_errors(trained):
    plain, bbb, sgld = (open_folder(trained(m)).load() for m in ("lstm", "bbb", "sgld"))
    tokens = torch.arange(20)
    with pytest.raises(ValueError, match="nothing to sample"):
        perplexity(plain, tokens, samples=3)
    with pytest.raises(ValueError, match="not trained with sharpening"):
        perplexity(bbb, tokens, sharpened=True)
    with pytest.raises(ValueError, match="kept 3 weight samples; ask for no more"):
        perplexity(sgld, tokens, samples=4)
    with pytest.raises(ValueError, match="samples = -1"):
        perplexity(bbb, tokens, samples=-1)
    with pytest.raises(ValueError, match="no word to score"):
        perplexity(bbb, tokens[:1])


def test_sgld_predicts_with_the_average_of_its_kept_samples(trained):
    run = open_folder(trained("sgld"))
    method_, tokens = run.load(), _tokens(run)
    assert len(method_.samples) == len(method_.resting()) == 3
    average = perplexity(method_, tokens, steps=50)
    assert average.value == pytest.approx(perplexity(method_, tokens, samples=3, steps=50).value)
    each = torch.stack(
        [_log_probs(Ensemble(method_.model, [m]), tokens) for m in method_.members(3, 0)]
    )
    by_hand = (each.logsumexp(0) - math.log(3)).double().sum().item()
    assert average.nats == pytest.approx(-by_hand, rel=1e-5)
    assert len({round(total, 3) for total in each.sum(1).tolist()}) == 3


# ---------------------------------------------------------------------- word by word


def test_words_are_scored_in_order_with_what_the_model_does_not_know(trained):
    run = open_folder(trained("bbb"))
    lines = [["w1", "w10", "nonsense"], ["w2"]]
    scored = list(score_words(run.load(), run.vocabulary, lines, samples=4, seed=0))
    assert [word.word for word in scored] == ["w1", "w10", "nonsense", "<eos>", "w2", "<eos>"]
    assert [word.unknown for word in scored] == [False, False, True, False, False, False]
    assert all(word.mutual_information > 0 for word in scored)
    assert all(word.probability == pytest.approx(math.exp(-word.surprise)) for word in scored)
    total = sum(word.surprise for word in scored)
    tokens = torch.tensor([run.vocabulary.end, *run.vocabulary.encode([w.word for w in scored])])
    right = perplexity(run.load(), tokens, samples=4, steps=1024)
    assert total == pytest.approx(right.nats, rel=1e-5)
    with pytest.raises(ValueError, match="no word of the text"):
        list(score_words(run.load(), run.vocabulary, [["x"]], samples=0, seed=0))
