"""The sections of the report on caption runs."""

from __future__ import annotations

import base64
import html
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesrnn.data.vocabulary import END
from bayesrnn.evaluation.calibration import summarise
from bayesrnn.evaluation.pruning import curve
from bayesrnn.pruning import by_signal_to_noise
from bayesrnn.report import calibration, learning
from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.coloured import coloured, legend
from bayesrnn.report.html import picture, side_by_side, table
from bayesrnn.report.progress import Stages
from bayesrnn.report.summary import Summary, judge, summary
from bayesrnn.report.weights import weights_html
from bayesrnn.tasks.captions import figures
from bayesrnn.tasks.captions.comparison import BEAM, Row, compare, comparison
from bayesrnn.tasks.captions.data.images import decode
from bayesrnn.tasks.captions.knowledge import Knowledge, knows, noise_features
from bayesrnn.tasks.captions.photos import Word, caption_words
from bayesrnn.tasks.captions.quality import NO_SCORES, describe
from bayesrnn.tasks.captions.trained import Split, TrainedCaptioner, notes_of
from bayesrnn.training.experiment import Progress, ReportOptions, Section

SHOWN = 24
"""Number of photos on the page."""
THUMBNAIL = 320
"""Longest side of a photo on the page, in pixels."""
DROPS = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95)


def sections(
    models: Sequence[TrainedCaptioner], options: ReportOptions, progress: Progress
) -> list[Section]:
    """Evaluate the models and write the sections of the page."""
    bayesian = {model.name for model in models if _is_sampled(model)}
    sampled = [model for model in models if _samples(model, options)]
    progress = Stages(progress, 4 * len(models) + len(sampled) + 2 * len(bayesian))
    rows = compare(
        models,
        samples=options.samples,
        seed=options.seed,
        progress=lambda what: progress(f"evaluating {what}"),
    )
    found: list[Section] = [
        _summary(rows, bayesian),
        _comparison(rows, notes_of(models)),
        learning.section({model.name: model.run for model in models}),
        _photos(models, rows, options, progress),
        _uncertainty(models, rows, options, progress),
        _calibration(models, options, progress),
    ]
    found += [s for s in [_pruning(models, progress)] if s is not None]
    for index, model in enumerate(models):
        if model.method.posterior is not None:
            progress(f"{model.name}: information in the weights")
            body = weights_html(model.method.posterior, f"c{index}")
            found.append(Section(f"posterior-{index}", f"The posterior of {model.name}", body))
    return found


def _summary(rows: Sequence[Row], bayesian: set[str]) -> Summary:
    """Which run is ahead; Bayesian runs are averaged over samples, where they can be."""
    judged = {
        row.run: row.sampled if row.sampled and row.run in bayesian else row.quality for row in rows
    }
    found = [
        judge(
            "Perplexity",
            "the number of words the model is undecided between; lower is better",
            {run: quality.perplexity for run, quality in judged.items()},
            lambda value: f"{value:.2f}",
            bayesian=bayesian,
        ),
        judge(
            "Captions",
            "CIDEr times 100, what they have in common with the reference captions; higher is better",
            {run: 100 * q.scores.cider for run, q in judged.items() if q.scores is not None},
            lambda value: f"{value:.1f}",
            bayesian=bayesian,
            higher_is_better=True,
        ),
    ]
    findings = [finding for finding in found if finding is not None]
    return summary(findings, [row.run for row in rows], bayesian)


def _comparison(rows: Sequence[Row], left_out: Sequence[str]) -> Section:
    found = comparison(rows)
    scored = [row.quality.scores.note if row.quality.scores else NO_SCORES for row in rows]
    notes = dict.fromkeys([*left_out, *scored])
    note = (
        "Perplexity per word of the reference captions, the end of a caption included: the lower "
        "the better. BLEU-4 and CIDEr, times 100, are of the captions that a beam search of width"
        f" {BEAM} finds: the higher the better. All are of the best epoch, without sampling (at a "
        "posterior&rsquo;s mean), or with the probabilities of the weight samples averaged at "
        "each word (MC)."
    )
    said = "".join(f"<p>{html.escape(text)}</p>" for text in notes if text)
    body = f"<p>{note}</p>{said}{table(found.headings, found.cells)}"
    return Section("comparison", "Comparison", body)


# ---------------------------------------------------------------------- photos and their captions


@dataclass(frozen=True)
class _Said:
    """What one run says of a photo."""

    run: str
    words: tuple[Word, ...]
    confidence: float


def _photos(
    models: Sequence[TrainedCaptioner],
    rows: Sequence[Row],
    options: ReportOptions,
    progress: Progress,
) -> Section:
    """A random sample of the photos on which the runs differ, with what each run says [F17, fig. 4]."""
    split = models[0].split("test")
    chosen, differing = _sample(models, split, rows, options.seed)
    said: list[list[_Said]] = [[] for _ in chosen]
    for model in models:
        progress(f"{model.name}: captions of {len(chosen)} photos")
        samples = _samples(model, options) if _is_sampled(model) else 0
        described = describe(
            model,
            model.split("test").features[chosen],
            samples=samples,
            beam=BEAM,
            seed=options.seed,
        )
        for row in range(len(chosen)):
            words = caption_words(model, described, row)
            said[row].append(_Said(model.name, words, described.confidence[row].item()))
    highest = max(word.entropy for each in said for s in each for word in s.words)
    cards = [
        _card(split, index, captions, highest) for index, captions in zip(chosen, said, strict=True)
    ]
    which = (
        f"A random sample (seed {options.seed}) of the {differing:,} of {len(split.entries):,} "
        "test photos on which the runs&rsquo; captions differ. "
        if len(models) > 1
        else f"A random sample (seed {options.seed}) of the {len(split.entries):,} test photos. "
    )
    note = (
        f"{which}The stronger a word&rsquo;s background, the higher the entropy of the prediction "
        "at its place, on one scale for all. Point at a word for its numbers. The percentage is the "
        "confidence in the caption: the geometric mean of"
        " its words&rsquo; probabilities."
    )
    body = f"<p>{note}</p>{legend(highest)}<div class='photos'>{''.join(cards)}</div>"
    return Section("photos", "Photos and captions", body)


def _is_sampled(model: TrainedCaptioner) -> bool:
    """Whether its captions on the page are of weight samples; those of dropout change from call to call."""
    return model.method.posterior is not None


def _sample(
    models: Sequence[TrainedCaptioner], split: Split, rows: Sequence[Row], seed: int
) -> tuple[list[int], int]:
    """The rows of the photos to show, and the number of photos on which the captions differ."""
    texts = [
        row.sampled.texts if row.sampled and _is_sampled(model) else row.quality.texts
        for model, row in zip(models, rows, strict=True)
    ]
    differ = [
        index
        for index, entry in enumerate(split.entries)
        if len({said.get(entry.image) for said in texts}) > 1
    ]
    pool = differ if len(rows) > 1 and differ else list(range(len(split.entries)))
    return sorted(random.Random(seed).sample(pool, min(SHOWN, len(pool)))), len(differ)


def _card(split: Split, index: int, captions: Sequence[_Said], highest: float) -> str:
    entry = split.entries[index]
    lines = "".join(
        f"<p class='text'><b>{html.escape(said.run)}</b> {coloured(_words(said.words), highest)} "
        f"<span class='faint'>{said.confidence:.0%}</span></p>"
        for said in captions
    )
    references = "".join(f"<li>{html.escape(text)}</li>" for text in entry.captions)
    return (
        f"<article>{_thumbnail(split, entry.image)}{lines}"
        f"<details><summary>What people wrote</summary><ul>{references}</ul></details></article>"
    )


def _thumbnail(split: Split, name: str) -> str:
    image = decode(split.images.read(name))
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    data = base64.b64encode(out.getvalue()).decode()
    return (
        f"<img src='data:image/jpeg;base64,{data}' alt='{html.escape(name, quote=True)}' "
        f"width='{image.width}' height='{image.height}' loading='lazy'>"
    )


def _words(words: Sequence[Word]) -> Sequence[Word]:
    """A caption's words without its end."""
    return words[:-1] if words and words[-1].word == END else words


# ---------------------------------------------------------------------- uncertainty, calibration, pruning


def _uncertainty(
    models: Sequence[TrainedCaptioner],
    rows: Sequence[Row],
    options: ReportOptions,
    progress: Progress,
) -> Section:
    found: dict[str, Knowledge] = {}
    missing: list[str] = []
    for model, row in zip(models, rows, strict=True):
        progress(f"{model.name}: confidence and noise")
        noise, why = noise_features(model)
        missing += [why] if why else []
        for quality in [row.quality, *([row.sampled] if row.sampled else [])]:
            found[f"{model.name}, {quality.way}"] = knows(model, quality, noise, options.seed)
    headings = [
        *("run", "rank correlation with CIDEr", "entropy, photos", "noise", "AUROC"),
        *("MI, photos", "noise", "AUROC"),
    ]
    cells = [[name, *_numbers(knowledge)] for name, knowledge in found.items()]
    curves = [k.rejection for k in found.values() if k.rejection is not None]
    note = (
        "A model that knows when it is wrong can keep silent: withholding the captions it is "
        "least confident of should raise the CIDEr of the others, and the rank correlation of "
        "confidence and CIDEr over the photos should be high. Images of random pixels show "
        "nothing to describe: their captions should be less certain. Entropy and mutual "
        "information (MI) are means over the words of the model&rsquo;s own captions, in nats; AUROC "
        "is the probability that an image of noise has a higher value than a photo."
    )
    drawn = (
        picture(figures.rejection_curves(curves), "rejection", "CIDEr by share withheld")
        if curves
        else ""
    )
    said = "".join(f"<p>{html.escape(why)}</p>" for why in dict.fromkeys(missing))
    text = f"<p>{note}</p>{said}"
    body = (side_by_side([drawn], text) if drawn else text) + table(headings, cells)
    return Section("uncertainty", "Uncertainty", body)


def _numbers(knowledge: Knowledge) -> list[str]:
    rank = "-" if knowledge.rejection is None else f"{knowledge.rejection.rank_correlation:.3f}"
    gap = knowledge.noise
    if gap is None:
        return [rank, *["-"] * 6]
    return [
        rank,
        f"{gap.photos:.3f}",
        f"{gap.noise:.3f}",
        f"{gap.auroc:.3f}",
        *(
            ["-", "-", "-"]
            if gap.information_auroc is None
            else [
                f"{gap.photos_information:.4f}",
                f"{gap.noise_information:.4f}",
                f"{gap.information_auroc:.3f}",
            ]
        ),
    ]


def _calibration(
    models: Sequence[TrainedCaptioner], options: ReportOptions, progress: Progress
) -> Section:
    rows = []
    for model in models:
        progress(f"{model.name}: calibration")
        encoded = model.encoded(model.split("test"))
        for count in dict.fromkeys([0, _samples(model, options)]):
            words = model.beliefs(encoded, model.members(count, options.seed)).words
            found = summarise(words.confidence, words.correct.float(), -words.log_prob, words.brier)
            rows.append(CalibrationRow(model.name, count, found))
    return calibration.section(rows, "word")


def _pruning(models: Sequence[TrainedCaptioner], progress: Progress) -> Section | None:
    curves: dict[str, Mapping[float, float]] = {}
    for model in models:
        if model.method.posterior is not None:
            progress(f"{model.name}: pruning")
            encoded = model.encoded(model.split("test"))
            curves[model.name] = curve(
                by_signal_to_noise(model.method.posterior),
                lambda m=model, e=encoded: m.beliefs(e, m.method.resting()).perplexity,
                DROPS,
            )
    if not curves:
        return None
    headings = ["weights", *curves]
    cells = [[f"{d:.0%} dropped", *(f"{c[d]:.2f}" for c in curves.values())] for d in DROPS]
    drawn = picture(figures.pruning_curves(curves), "pruned", "Perplexity by share dropped")
    note = "<p>Test perplexity with weights set to zero in the order of |&mu;|/&sigma;.</p>"
    return Section("pruning", "Pruning", side_by_side([drawn], note + table(headings, cells)))


def _samples(model: TrainedCaptioner, options: ReportOptions) -> int:
    return max(model.method.available([options.samples]) if options.samples else [], default=0)
