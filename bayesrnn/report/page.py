"""The report: one HTML page that stands alone, with the tables and pictures of a set of runs."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesrnn.data.corpus import END
from bayesrnn.evaluation.words import ScoredWord, score_words
from bayesrnn.methods import PosteriorLearner
from bayesrnn.report import figures
from bayesrnn.report.comparison import Row, compare, table_of
from bayesrnn.report.html import Section, document, picture, settings, side_by_side, table
from bayesrnn.report.pruning import SIGNAL_TO_NOISE, PruningStudy, study_pruning
from bayesrnn.report.uncertainty import (
    CalibrationRow,
    Subject,
    calibration_table,
    gap_table,
    sample_counts,
    spoilt_texts,
    study_calibration,
    study_uncertainty,
    subjects,
)
from bayesrnn.report.weights import LayerWeights, weights_by_layer
from bayesrnn.training.run import Run

COUNTS = (1, 2, 5, 10)
EXCERPT = 150
"""Words of the coloured text."""


@dataclass(frozen=True)
class Options:
    """How much work goes into a report."""

    samples: int = 10
    words: int = 20_000
    """Of test text, for uncertainty and calibration; 0 for all."""
    other: str | None = None
    drop: float = 0.8
    streams: int = 20
    window: int = 10
    data: str | None = None
    seed: int = 0


def make_page(
    runs: Sequence[Run], options: Options, *, cache: Path, progress: Callable[[str], None]
) -> str:
    """Do the work, and write the page. `progress` is told what is being done."""
    told = _Told(progress)
    examined = subjects(runs, split="test", data=options.data, words=options.words, cache=cache)
    rows = compare(
        list(runs),
        data=options.data,
        cache=cache,
        samples=options.samples,
        dynamic=False,
        lr=0.1,
        streams=options.streams,
        progress=told.now,
    )
    counts = sorted({count for count in (*COUNTS, options.samples) if 0 < count <= options.samples})
    gaps, calibrations = [], []
    for subject in examined:
        texts = spoilt_texts(subject, other=options.other, seed=options.seed, cache=cache)
        gaps += study_uncertainty(
            subject,
            texts,
            counts,
            window=options.window,
            streams=options.streams,
            seed=options.seed,
            progress=lambda what, _: told.now(what),
        )
        calibrations += study_calibration(
            subject,
            options.samples,
            streams=options.streams,
            seed=options.seed,
            progress=lambda what, _: told.now(what),
        )
    body = [
        _comparison(rows, options.streams),
        _learning(examined),
        _uncertainty(gaps, options),
        _calibration(calibrations),
    ]
    body += [
        _posterior(subject, examined, options, cache, told)
        for subject in examined
        if isinstance(subject.learner, PosteriorLearner)
    ]
    body += [_excerpts(examined, options), settings(runs)]
    names = ", ".join(subject.name for subject in examined)
    return document(f"bayesrnn: {names}", body)


class _Told:
    """Passes on what is being done, once each."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.progress, self.last = progress, ""

    def now(self, what: str) -> None:
        if what != self.last:
            self.last = what
            self.progress(what)


# ---------------------------------------------------------------------- the sections


def _comparison(rows: list[Row], streams: int) -> Section:
    headings, cells = table_of(rows)
    note = (
        "Perplexity: the lower the better. <em>val</em> and <em>test</em> are of the best epoch, at the "
        "weights at rest (a posterior&rsquo;s mean); MC is averaged over samples of the weights; &le; marks "
        "an upper bound. Where <em>val, end</em> is above <em>val</em>, the run overfitted before its end. "
        f"The text was scored in {streams} stretches side by side, each without what stands before it; "
        "<code>bayesrnn compare</code> carries the state through, and is a little lower."
    )
    return Section("comparison", "Comparison", f"<p>{note}</p>{table(headings, cells)}")


def _learning(examined: Sequence[Subject]) -> Section:
    curves = {s.name: s.run.read_metrics("epoch") for s in examined if isinstance(s.run, Run)}
    figure = figures.learning_curves(curves)
    return Section(
        "learning",
        "Learning curves",
        side_by_side([picture(figure, "learning", "Perplexity by epoch, validation and training")]),
    )


def _uncertainty(gaps, options: Options) -> Section:
    most = {gap.model: max(g.samples for g in gaps if g.model == gap.model) for gap in gaps}
    shown = [gap for gap in gaps if gap.samples in (0, most[gap.model])]
    amount = f"first {options.words:,} words" if options.words else "words"
    note = (
        f"The {amount} of the test text against the same text spoilt, and another domain&rsquo;s. "
        "Gaps are differences of the mean per word, in nats: a model that knows what it does not know is "
        "less sure of foreign text, so its gap is large. AUROC is the chance that a window of "
        f"{options.window} foreign words shows a higher value than one of true words: 0.5 is guessing."
    )
    pictures = [
        picture(
            figures.entropy_gap(gaps), "gap", "Entropy gap of reversed text by number of samples"
        ),
        picture(figures.told_apart(gaps), "apart", "AUROC by text and run"),
    ]
    more = f"<details><summary>All figures</summary>{table(*gap_table(shown))}</details>"
    return Section("uncertainty", "Uncertainty", f"<p>{note}</p>{side_by_side(pictures)}{more}")


def _calibration(rows: list[CalibrationRow]) -> Section:
    note = (
        "Of all words whose likeliest guess was given probability 30%, it should be right for 30%. Above "
        "the dotted line a model is too modest, below it too sure. ECE is the mean distance from that line."
    )
    pictures = [
        picture(figures.reliability(rows), "reliability", "Accuracy by confidence"),
        picture(figures.nats_by_confidence(rows), "nats", "Mean -log p by confidence"),
    ]
    return Section(
        "calibration",
        "Calibration",
        f"<p>{note}</p>{side_by_side(pictures)}{table(*calibration_table(rows))}",
    )


def _posterior(
    subject: Subject, examined: Sequence[Subject], options: Options, cache: Path, told: _Told
) -> Section:
    """Pruning and the weights of one run."""
    assert isinstance(subject.run, Run)
    assert isinstance(subject.learner, PosteriorLearner)
    runs = [s.run for s in examined if isinstance(s.run, Run)]
    plain = next((run for run in runs if _is_plain_twin(run, subject.run)), None)
    study = study_pruning(
        subject.run,
        subject.learner,
        cache=cache,
        drop=options.drop,
        baseline=plain,
        data=options.data,
        streams=options.streams,
        progress=lambda what: told.now(f"{subject.name}: {what}"),
    )
    told.now(f"{subject.name}: information in the weights")
    layers = weights_by_layer(subject.learner.posterior)
    key = f"p{examined.index(subject)}"
    return Section(
        f"posterior-{key}",
        f"The posterior of {subject.name}",
        _pruning(study, key) + weight_pictures(layers, key),
    )


def _is_plain_twin(run: Run, of: Run) -> bool:
    """Whether it is an unregularised run on the same text."""
    same = run.config.data == of.config.data and run.vocabulary == of.vocabulary
    return same and run.config.method == "lstm"


def _pruning(study: PruningStudy, key: str) -> str:
    whole = study.curves[SIGNAL_TO_NOISE][0.0]
    note = (
        f"Weights set to zero in the order of |&mu;|/&sigma;. With {study.drop:.0%} of them gone validation "
        f"perplexity is {study.perplexity:.1f}, with none {whole:.1f}. In the patterns a black dot is a "
        "weight that stays; a white line across is a unit that hears nothing through that gate."
    )
    pictures = [
        picture(
            figures.pruning_curve(study.curves, study.drop, study.split),
            f"{key}-prune",
            "Perplexity by share of weights dropped",
        )
    ]
    patterns = picture(
        figures.pruning_patterns(study.order.kept(study.drop)),
        f"{key}-patterns",
        "Weights kept in each gate of each layer",
        wide=True,
    )
    return f"<h3>Pruning</h3><p>{note}</p>{side_by_side(pictures)}{patterns}"


def weight_pictures(layers: dict[str, LayerWeights], key: str) -> str:
    """The distributions of a posterior's weights by layer, and the information in them."""
    known = {
        n: (layer.bits, layer.weights) for n, layer in layers.items() if layer.bits is not None
    }
    weights = sum(layer.weights for layer in layers.values())
    note = f"{weights:,} weights. The prior ties some together, so their information is not told apart."
    if known:
        total = sum(bits for bits, _ in known.values())
        note = (
            f"The data have put {total / 8e6:,.2f} MB of information into {weights:,} weights, "
            f"{total / weights:.2f} bits each: what it takes to send them to someone who knows the prior."
        )
    mu = {name: layer.mu for name, layer in layers.items()}
    sigma = {name: layer.sigma for name, layer in layers.items()}
    ratio = {name: layer.signal_to_noise for name, layer in layers.items()}
    pictures = [
        ("mu", "posterior mean, mu", mu, False),
        ("sigma", "posterior standard deviation, sigma", sigma, True),
        ("snr", "signal to noise, |mu| / sigma", ratio, True),
    ]
    drawn = [
        picture(
            figures.distribution(data, label, log=log), f"{key}-{name}", f"Distribution of {label}"
        )
        for name, label, data, log in pictures
    ]
    if known:
        drawn.append(
            picture(figures.information(known), f"{key}-bits", "Information by layer in bits")
        )
    return f"<h3>Weights</h3><p>{note}</p>{side_by_side(drawn)}"


def _excerpts(examined: Sequence[Subject], options: Options) -> Section:
    """The same first words of the test text, as each run sees them."""
    parts = [
        "<p>The beginning of the test text. The stronger a word&rsquo;s ground, the more the samples of "
        "the weights disagreed about what would come in its place (mutual information); for runs that "
        "cannot be sampled, the more open the question was (entropy). Underlined words came as a "
        "surprise, with a probability below e<sup>-8</sup>. Point at a word for its figures.</p>"
    ]
    for subject in examined:
        vocabulary = subject.run.vocabulary
        words = [vocabulary.words[t] for t in subject.tokens[1 : EXCERPT + 1].tolist()]
        lines: list[list[str]] = [[]]
        for word in words:
            if word == END:
                lines.append([])
            else:
                lines[-1].append(word)
        lines = [line for line in lines if line]
        most = range(1, options.samples + 1)
        samples = max(sample_counts(subject.learner, most), default=0)
        scored = list(
            score_words(subject.learner, vocabulary, lines, samples=samples, seed=options.seed)
        )
        signal = "mutual_information" if samples else "entropy"
        parts.append(
            f"<h3>{html.escape(subject.name)}</h3><p class='text'>{_coloured(scored, signal)}</p>"
        )
    return Section("text", "Text, coloured by uncertainty", "".join(parts))


def _coloured(words: Sequence[ScoredWord], signal: str) -> str:
    highest = max(getattr(word, signal) for word in words) or 1.0
    spans = []
    for word in words:
        if word.word == END:
            spans.append("<br>")
            continue
        strength = getattr(word, signal) / highest
        title = (
            f"p {word.probability:.2g}, entropy {word.entropy:.2f} nats, "
            f"mutual information {word.mutual_information:.3f} nats"
        )
        surprise = " class='surprise'" if word.surprise > 8 else ""
        spans.append(
            f"<span{surprise} style='--u:{strength:.2f}' title='{title}'>{html.escape(word.word)}</span>"
        )
    return " ".join(spans)
