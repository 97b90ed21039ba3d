"""The sections of the report on language models."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bayesrnn.data.vocabulary import END
from bayesrnn.report import calibration
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.figures import learning_curves
from bayesrnn.report.html import picture, side_by_side, table
from bayesrnn.report.weights import weights_html
from bayesrnn.tasks.language import figures
from bayesrnn.tasks.language.comparison import Row, compare, comparison
from bayesrnn.tasks.language.evaluation.uncertainty import Gap
from bayesrnn.tasks.language.evaluation.words import ScoredWord, score_words
from bayesrnn.tasks.language.pruning_study import (
    SIGNAL_TO_NOISE,
    PruningStudy,
    posterior_of,
    study_pruning,
)
from bayesrnn.tasks.language.trained import TrainedModel
from bayesrnn.tasks.language.uncertainty_study import (
    Subject,
    gap_table,
    other_texts,
    study_calibration,
    study_uncertainty,
    subjects,
)
from bayesrnn.training.experiment import Progress, ReportOptions, Section

COUNTS = (1, 2, 5, 10)
EXCERPT = 150
"""Number of words in the coloured text."""


WINDOW = 10
"""Number of words in a window to classify as in- or out-of-distribution."""


def sections(
    models: Sequence[TrainedModel], options: ReportOptions, progress: Progress
) -> list[Section]:
    """Evaluate the models and write the sections of the page."""
    told = _Told(progress)
    examined = subjects(models, split="test", data=options.data, words=options.words)
    rows = compare(
        models,
        data=options.data,
        samples=options.samples,
        streams=options.streams,
        progress=told.now,
    )
    counts = sorted({count for count in (*COUNTS, options.samples) if 0 < count <= options.samples})
    gaps: list[Gap] = []
    calibrations: list[CalibrationRow] = []
    how = {"streams": options.streams, "seed": options.seed}
    for subject in examined:
        texts = other_texts(subject, other=options.other, seed=options.seed)
        gaps += study_uncertainty(
            subject, texts, counts, window=WINDOW, progress=lambda what, _: told.now(what), **how
        )
        calibrations += study_calibration(
            subject, options.samples, progress=lambda what, _: told.now(what), **how
        )
    return [
        _comparison(rows, options.streams),
        _learning(models),
        _uncertainty(gaps, options),
        calibration.section(calibrations, "word", CALIBRATION_NOTE),
        *(
            _posterior(index, models, options, told)
            for index, model in enumerate(models)
            if model.method.posterior is not None
        ),
        _excerpts(examined, options),
    ]


class _Told:
    """Reports each kind of work once."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.last = progress, ""

    def now(self, what: str) -> None:
        if what != self.last:
            self.last = what
            self.progress(what)


# ---------------------------------------------------------------------- the sections


def _comparison(rows: list[Row], streams: int) -> Section:
    found = comparison(rows)
    note = (
        "Perplexity: the lower the better. <em>val</em> and <em>test</em> are of the best epoch, at the "
        "trained weights (a posterior&rsquo;s mean); MC is averaged over weight samples; &le; marks "
        "an upper bound. Where <em>val, end</em> is above <em>val</em>, the run overfitted before its end. "
        f"The text was scored in {streams} parallel streams, each starting without context; "
        "<code>bayesrnn compare</code> uses one stream, and its perplexities are a little lower."
    )
    return Section("comparison", "Comparison", f"<p>{note}</p>{table(found.headings, found.cells)}")


def _learning(models: Sequence[TrainedModel]) -> Section:
    curves = {model.name: model.run.read_metrics("epoch") for model in models if model.run}
    figure = learning_curves(
        curves, valid="valid_perplexity", train="train_perplexity", label="perplexity"
    )
    return Section(
        "learning",
        "Learning curves",
        side_by_side([picture(figure, "learning", "Perplexity by epoch, validation and training")]),
    )


def _uncertainty(gaps: Sequence[Gap], options: ReportOptions) -> Section:
    most = {gap.model: max(g.samples for g in gaps if g.model == gap.model) for gap in gaps}
    shown = [gap for gap in gaps if gap.samples in (0, most[gap.model])]
    amount = f"first {options.words:,} words" if options.words else "words"
    note = (
        f"The {amount} of the test text compared with corrupted copies and a text of another domain. "
        "Gaps are differences of the mean per word, in nats: a good model is less certain of other text, "
        "so its gap is large. AUROC is the probability that a window of "
        f"{WINDOW} words of the other text has a higher value than one of the true text: 0.5 is chance."
    )
    pictures = [
        picture(
            figures.entropy_gap(gaps), "gap", "Entropy gap of reversed text by number of samples"
        ),
        picture(figures.told_apart(gaps), "apart", "AUROC by text and run"),
    ]
    more = f"<details><summary>All figures</summary>{table(*gap_table(shown))}</details>"
    return Section("uncertainty", "Uncertainty", f"<p>{note}</p>{side_by_side(pictures)}{more}")


CALIBRATION_NOTE = (
    "When the likeliest word has probability 30%, it should be right 30% of the time. Above the dotted line "
    "a model is underconfident, below it overconfident. ECE, the expected calibration error, is the mean "
    "distance from that line."
)


def _posterior(
    index: int, models: Sequence[TrainedModel], options: ReportOptions, told: _Told
) -> Section:
    """Pruning and the weights of one run."""
    model = models[index]
    study = study_pruning(
        model,
        drop=options.drop,
        baseline=next((other for other in models if _is_plain_twin(other, model)), None),
        data=options.data,
        streams=options.streams,
        progress=lambda what: told.now(f"{model.name}: {what}"),
    )
    told.now(f"{model.name}: information in the weights")
    key = f"p{index}"
    body = _pruning(study, key) + weights_html(posterior_of(model), key)
    return Section(f"posterior-{key}", f"The posterior of {model.name}", body)


def _is_plain_twin(model: TrainedModel, of: TrainedModel) -> bool:
    """Whether it is an unregularised run on the same text."""
    same = model.config.data == of.config.data and model.vocabulary == of.vocabulary
    return same and model.config.method == "lstm"


def _pruning(study: PruningStudy, key: str) -> str:
    whole = study.curves[SIGNAL_TO_NOISE][0.0]
    note = (
        f"Weights set to zero in the order of |&mu;|/&sigma;. With {study.drop:.0%} of them dropped, "
        f"validation perplexity is {study.perplexity:.1f}; with none, {whole:.1f}. In the patterns a black "
        "dot is a weight that is kept; a white row is a unit without inputs to that gate."
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


def _excerpts(examined: Sequence[Subject], options: ReportOptions) -> Section:
    """The same first words of the test text, as each run sees them."""
    parts = [
        "<p>The beginning of the test text. The stronger a word&rsquo;s background colour, the higher the "
        "uncertainty of the prediction at its position: mutual information, or entropy for runs that "
        "cannot be sampled. Underlined words had a probability below e<sup>-8</sup>. Point at a word "
        "for its numbers.</p>"
    ]
    for subject in examined:
        method, vocabulary = subject.trained.method, subject.trained.vocabulary
        words = [vocabulary.words[t] for t in subject.tokens[1 : EXCERPT + 1].tolist()]
        lines: list[list[str]] = [[]]
        for word in words:
            if word == END:
                lines.append([])
            else:
                lines[-1].append(word)
        lines = [line for line in lines if line]
        most = range(1, options.samples + 1)
        samples = max(method.available(most), default=0)
        scored = list(score_words(method, vocabulary, lines, samples=samples, seed=options.seed))
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
