"""The sections of the report on language models."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from bayesrnn.data.vocabulary import END
from bayesrnn.evaluation.pruning import DROPS
from bayesrnn.report import calibration, learning
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.coloured import coloured, legend
from bayesrnn.report.html import columns, picture, side_by_side, table
from bayesrnn.report.progress import Work
from bayesrnn.report.summary import Summary, summary
from bayesrnn.report.weights import weights_html
from bayesrnn.tasks.language import figures
from bayesrnn.tasks.language.comparison import Row, compare, comparison
from bayesrnn.tasks.language.evaluation.generation import generate
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.evaluation.uncertainty import Gap, Text
from bayesrnn.tasks.language.evaluation.words import (
    OUTSTANDING,
    ScoredWord,
    outstanding,
    score_words,
)
from bayesrnn.tasks.language.examination import Way, amount, examine, ways_of
from bayesrnn.tasks.language.pruning_study import PruningStudy, posterior_of, study_pruning
from bayesrnn.tasks.language.trained import TrainedModel
from bayesrnn.tasks.language.uncertainty_study import Subject, gap_table, other_texts, subjects
from bayesrnn.tasks.language.verdict import verdict
from bayesrnn.training.experiment import Progress, ReportOptions, Section

COUNTS = (1, 2, 5, 10)
"""The numbers of samples in the figure of the entropy gap, up to the number asked for."""
NOISE = (0.2,)
"""The shares of words replaced in the noisy texts."""
WINDOW = 10
"""Number of words in a window to classify as real or spoilt."""
PRUNING_WORDS = 5000
"""Number of validation words that the pruning curves are measured on."""
EXCERPT = 150
"""Number of words in the coloured text."""
GENERATED = 60
"""Number of words in the text that each run writes."""
DRAWING = 40_000
"""The time that the figures of a run take, as a number of words predicted by a tiny model."""

DOMAINS = {
    "pydocs": "the documentation of Python",
    "ptb": "newspaper articles of the Penn Treebank",
    "wikitext-2": "articles of Wikipedia",
}


def sections(
    models: Sequence[TrainedModel], options: ReportOptions, progress: Progress
) -> list[Section]:
    """Evaluate the models and write the sections of the page."""
    examined = subjects(models, split="test", data=options.data, words=options.words)
    shortest = min(len(subject.tokens) - 1 for subject in examined)
    options = replace(options, streams=max(1, min(options.streams, shortest // WINDOW)))
    found = _measure(examined, options, Work.of(progress))
    return [
        _summary(found),
        _comparison(found.rows, options.streams),
        learning.section({model.name: model.run for model in models if model.run}),
        _uncertainty(found, options),
        calibration.section(found.calibrations, "word", CALIBRATION_NOTE),
        *(
            _posterior(f"p{index}", model, found.studies[model.name], options)
            for index, model in enumerate(models)
            if model.name in found.studies
        ),
        _excerpts(found.examined, options),
        _generated(models, options),
    ]


# ---------------------------------------------------------------------- the measurements


@dataclass(frozen=True)
class _Measured:
    """All that the page says of the runs."""

    examined: list[Subject]
    rows: list[Row]
    calibrations: list[CalibrationRow]
    gaps: list[Gap]
    other: str | None
    """The name of the text of another domain, if there is one."""
    studies: dict[str, PruningStudy]
    """By run; only runs with a posterior have one."""
    bayesian: set[str]
    """The runs with a distribution over their weights."""


@dataclass(frozen=True)
class _Plan:
    """What will be evaluated of one run."""

    subject: Subject
    ways: list[Way]
    texts: list[Text]
    whole: bool
    """Whether the subject's text is the whole test text."""
    baseline: TrainedModel | None
    """The run whose pruning is compared with that of this one."""

    @property
    def prunes(self) -> bool:
        return self.subject.trained.method.posterior is not None

    def amount(self, options: ReportOptions) -> int:
        """The number of predictions: words, for each set of weights."""
        tests = [Text("true", self.subject.tokens), *self.texts]
        whole = len(self.subject.trained.tokens("test", options.data))
        again = 0 if self.whole else whole * sum(way.most for way in self.ways)
        curves = 2 if self.baseline is None else 3
        words = len(_pruning_text(self.subject.trained, options)) - 1
        pruning = curves * len(DROPS) * words if self.prunes else 0
        return self.compared(options) + amount(self.ways, tests) + again + pruning + DRAWING

    def compared(self, options: ReportOptions) -> int:
        """The number of predictions without sampling, for the comparison."""
        tokens = self.subject.trained.tokens
        return len(tokens("valid", options.data)) + len(tokens("test", options.data))


def _measure(examined: list[Subject], options: ReportOptions, work: Work) -> _Measured:
    models = [subject.trained for subject in examined]
    plans = [_plan(subject, models, options) for subject in examined]
    work.expect(sum(plan.amount(options) for plan in plans))
    work.begin("evaluating all runs on the validation and test texts, without sampling")
    rows = compare(models, data=options.data, streams=options.streams)
    work.advance(sum(plan.compared(options) for plan in plans))
    calibrations, gaps, studies = [], [], {}
    for index, plan in enumerate(plans):
        found = examine(
            plan.subject, plan.ways, plan.texts, window=WINDOW, streams=options.streams, work=work
        )
        rows[index] = _with_samples(rows[index], plan, found.calibrations, options, work)
        calibrations += found.calibrations
        gaps += found.gaps
        if plan.prunes:
            studies[plan.subject.name] = _study_pruning(plan, options, work)
    work.begin("drawing the figures")
    known = {text.name for plan in plans for text in plan.texts}
    other = Path(options.other).name if options.other else "pydocs"
    bayesian = {model.name for model in models if _is_bayesian(model)}
    return _Measured(
        examined, rows, calibrations, gaps, other if other in known else None, studies, bayesian
    )


def _plan(subject: Subject, models: Sequence[TrainedModel], options: ReportOptions) -> _Plan:
    counts = sorted({count for count in (*COUNTS, options.samples) if 0 < count <= options.samples})
    trained = subject.trained
    return _Plan(
        subject,
        ways_of(subject, counts, options.seed),
        other_texts(subject, other=options.other, noise=NOISE, seed=options.seed),
        whole=len(subject.tokens) == len(trained.tokens("test", options.data)),
        baseline=next((model for model in models if _is_plain_twin(model, trained)), None),
    )


def _is_bayesian(model: TrainedModel) -> bool:
    """Whether it has a posterior, or predicts with many samples of one."""
    return model.method.posterior is not None or len(model.method.resting()) > 1


def _is_plain_twin(model: TrainedModel, of: TrainedModel) -> bool:
    """Whether it is an unregularised run on the same text."""
    same = model.config.data == of.config.data and model.vocabulary == of.vocabulary
    return same and model.config.method == "lstm"


def _with_samples(
    row: Row, plan: _Plan, rows: Sequence[CalibrationRow], options: ReportOptions, work: Work
) -> Row:
    """The row with the test perplexity averaged over samples; of the whole text, also if --words is less."""
    samples = rows[-1].samples
    if not samples:
        return row
    value = math.exp(min(rows[-1].calibration.nats, 700))
    if not plan.whole:
        trained = plan.subject.trained
        work.begin(f"evaluating {trained.name} on the whole test text, {samples} samples")
        value = perplexity(
            trained.method,
            trained.tokens("test", options.data),
            streams=options.streams,
            samples=samples,
            seed=options.seed,
            progress=lambda words: work.advance(samples * words),
        ).value
    return replace(row, results={**row.results, "test_samples": value})


def _study_pruning(plan: _Plan, options: ReportOptions, work: Work) -> PruningStudy:
    """The pruning of a run, on the beginning of the validation text."""
    trained, baseline = plan.subject.trained, plan.baseline
    words = len(_pruning_text(trained, options)) - 1
    work.begin(f"pruning {trained.name}")
    return study_pruning(
        trained,
        drop=options.drop,
        baseline=baseline,
        words=PRUNING_WORDS,
        data=options.data,
        streams=options.streams,
        progress=lambda _: work.advance(words),
    )


def _pruning_text(model: TrainedModel, options: ReportOptions) -> Tensor:
    return model.tokens("valid", options.data)[: PRUNING_WORDS + 1]


# ---------------------------------------------------------------------- the sections


def _summary(found: _Measured) -> Summary:
    spoilt = [gap for gap in found.gaps if gap.text != found.other]
    findings = verdict(
        found.rows,
        found.calibrations,
        spoilt,
        list(found.studies.values()),
        bayesian=found.bayesian,
    )
    return summary(findings, [row.run for row in found.rows], found.bayesian)


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


def _uncertainty(found: _Measured, options: ReportOptions) -> Section:
    gaps = found.gaps
    most = {gap.model: max(g.samples for g in gaps if g.model == gap.model) for gap in gaps}
    shown = [gap for gap in gaps if gap.samples in (0, most[gap.model])]
    words = max(len(subject.tokens) - 1 for subject in found.examined)
    note = (
        f"{words:,} words of the test text compared with spoilt copies of them: reversed, shuffled, and with "
        "some of the words replaced by random ones (noise)"
        f"{_other_domain(found.other, options)}. Gaps are differences of the mean per word, in nats: a good "
        "model is less certain of other text, so its gap is large. AUROC is the probability that a window of "
        f"{WINDOW} words of the other text has a higher value than one of the true text: 0.5 is chance. "
        "-log p is that of the words in the vocabulary; <em>unknown</em> is the share of the others."
    )
    pictures = [
        picture(
            figures.entropy_gap(gaps), "gap", "Entropy gap of reversed text by number of samples"
        ),
        picture(figures.told_apart(gaps), "apart", "AUROC by -log p, by text and run"),
        picture(
            figures.told_apart(gaps, "entropy"),
            "apart-entropy",
            "AUROC by entropy, by text and run",
        ),
    ]
    more = f"<details><summary>All figures</summary>{table(*gap_table(shown))}</details>"
    return Section("uncertainty", "Uncertainty", side_by_side(pictures, f"<p>{note}</p>") + more)


def _other_domain(name: str | None, options: ReportOptions) -> str:
    """What the text of another domain is."""
    if name is None:
        return ""
    what = DOMAINS.get(options.other or "pydocs", f"the text in {options.other}")
    return f"; and with a text of another domain, <em>{html.escape(name)}</em>: {html.escape(what)}"


CALIBRATION_NOTE = (
    "When the likeliest word has probability 30%, it should be right 30% of the time. Above the dotted line "
    "a model is underconfident, below it overconfident. ECE, the expected calibration error, is the mean "
    "distance from that line."
)


def _posterior(
    key: str, model: TrainedModel, study: PruningStudy, options: ReportOptions
) -> Section:
    """Pruning and the weights of one run."""
    words = len(_pruning_text(model, options)) - 1
    body = _pruning(study, key, words) + weights_html(posterior_of(model), key)
    return Section(f"posterior-{key}", f"The posterior of {model.name}", body)


def _pruning(study: PruningStudy, key: str, words: int) -> str:
    whole = study.whole
    note = (
        f"Weights set to zero in the order of |&mu;|/&sigma;. With {study.drop:.0%} of them dropped, "
        f"perplexity is {study.at_drop:.1f}; with none, {whole:.1f}: on the first {words:,} words "
        "of the validation text, which suffice for a curve. In the patterns a black dot is a weight that "
        "is kept; a white row is a unit without inputs to that gate."
    )
    cells = [
        [f"{drop:.0%}", *(f"{points[drop]:.1f}" for points in study.curves.values())]
        for drop in TABLED
    ]
    drawn = picture(
        figures.pruning_curve(study.curves, study.drop, study.split),
        f"{key}-prune",
        "Perplexity by share of weights dropped",
    )
    patterns = [
        picture(pattern, f"{key}-pattern-{index}", f"Weights kept in each gate, {name}")
        for index, (name, pattern) in enumerate(
            figures.patterns_by_matrix(study.order.kept(study.drop)).items()
        )
    ]
    beside = f"<p>{note}</p>{table(['dropped', *study.curves], cells)}"
    return f"<h3>Pruning</h3>{side_by_side([drawn], beside)}{side_by_side(patterns)}"


TABLED = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95)
"""The shares dropped in the table beside the pruning curve."""


def _excerpts(examined: Sequence[Subject], options: ReportOptions) -> Section:
    """The same first words of the test text, as each run sees them."""
    scored = {subject.name: _scored(subject, options) for subject in examined}
    highest = max(word.entropy for words in scored.values() for word in words)
    texts = [
        f"<h3>{html.escape(name)}</h3><p class='text'>"
        f"{coloured(words, highest, marked=_marked(words), line_end=END)}</p>"
        for name, words in scored.items()
    ]
    note = (
        "<p>The beginning of the test text: the stronger a word&rsquo;s background, the higher the entropy "
        "of the prediction at its place, before the word itself is seen. The scale is the same for all runs; "
        "Bayesian runs are averaged over weight samples. Point at a word for its numbers.</p>"
    )
    marks = f"the {OUTSTANDING:.0%} of the words that were the least likely for that run"
    body = f"{note}{legend(highest, marks)}{columns(texts)}"
    return Section("text", "Text, coloured by uncertainty", body)


def _marked(words: Sequence[ScoredWord]) -> tuple[int, ...]:
    return outstanding(words, sampled=False).unlikely


def _scored(subject: Subject, options: ReportOptions) -> list[ScoredWord]:
    method, vocabulary = subject.trained.method, subject.trained.vocabulary
    words = [vocabulary.words[t] for t in subject.tokens[1 : EXCERPT + 1].tolist()]
    lines: list[list[str]] = [[]]
    for word in words:
        if word == END:
            lines.append([])
        else:
            lines[-1].append(word)
    possible = method.available(range(1, options.samples + 1))
    samples = possible[-1] if possible and _is_bayesian(subject.trained) else 0
    return list(
        score_words(
            method,
            vocabulary,
            [line for line in lines if line],
            samples=samples,
            seed=options.seed,
        )
    )


def _generated(models: Sequence[TrainedModel], options: ReportOptions) -> Section:
    """What each run writes."""
    texts = []
    for model in models:
        words = generate(model.method, model.vocabulary, [], words=GENERATED, seed=options.seed)
        said = " ".join("<br>" if word == END else html.escape(word) for word in words)
        texts.append(f"<h3>{html.escape(model.name)}</h3><p>{said}</p>")
    note = (
        f"<p>{GENERATED} words, each drawn from the run&rsquo;s predictions after the words before it, "
        f"at the trained weights (a posterior&rsquo;s mean), with seed {options.seed}.</p>"
    )
    return Section("generated", "Generated text", note + columns(texts))
