"""The uncertainty and calibration of a set of trained language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bayesrnn.report.calibration import CalibrationRow
from bayesrnn.report.table import text_table
from bayesrnn.tasks.language.comparison import check_same_text
from bayesrnn.tasks.language.evaluation.beliefs import models_of
from bayesrnn.tasks.language.evaluation.calibration import calibration
from bayesrnn.tasks.language.evaluation.uncertainty import (
    Contender,
    Gap,
    Text,
    add_noise,
    benchmark,
    reverse,
    shuffle,
    unigram_entropy,
)
from bayesrnn.tasks.language.trained import TrainedModel

NOISE = (0.05, 0.1, 0.2, 0.5)
WordProgress = Callable[[str, int], None]
"""Called with a description of the work in progress and the number of words done since the last call."""


@dataclass(frozen=True)
class Subject:
    """A trained model and the text it is evaluated on."""

    trained: TrainedModel
    tokens: Tensor

    @property
    def name(self) -> str:
        return self.trained.name

    @property
    def vocabulary(self) -> int:
        return len(self.trained.vocabulary)

    @property
    def unknown(self) -> int:
        """The token of all words that are not in the vocabulary."""
        return self.trained.vocabulary.unknown


def subjects(
    models: Sequence[TrainedModel], *, split: str, data: str | None, words: int
) -> list[Subject]:
    """Each model with a split of its text or of `data`: the first `words` words, or all for 0.

    ValueError unless it is one text for all of them, so that their figures can be compared.
    """
    if words < 0:
        raise ValueError(f"words = {words} must be 0, for all, or more.")
    check_same_text(models, (split,), data)
    return [
        Subject(model, model.tokens(split, data)[: words + 1 if words else None])
        for model in models
    ]


def check_counts(samples: Sequence[int]) -> None:
    for count in samples:
        if count < 1:
            raise ValueError(f"samples = {count} must be at least 1; the mean is always measured.")


def other_texts(
    subject: Subject,
    *,
    split: str = "test",
    other: str | None = None,
    noise: Sequence[float] = NOISE,
    seed: int = 0,
) -> list[Text]:
    """The subject's text reversed, shuffled and with noise, and a text of another domain, no longer than it.

    By default the latter is pydocs, if the run was trained on other text but knows most of its words.
    """
    tokens, trained = subject.tokens, subject.trained
    texts = [Text("reversed", reverse(tokens)), Text("shuffled", shuffle(tokens, seed))]
    if other is not None:
        foreign = trained.tokens(split, other, option="--other")
        texts.append(Text(Path(other).name, foreign[: len(tokens)]))
    elif trained.config.data != "pydocs":
        foreign = trained.any_tokens(split, "pydocs")
        if trained.share_known(foreign) > 0.5:
            texts.append(Text("pydocs", foreign[: len(tokens)]))
    texts += [Text(f"noise {rate:.0%}", add_noise(tokens, rate, seed)) for rate in noise]
    return texts


def study_uncertainty(
    subject: Subject,
    texts: Sequence[Text],
    samples: Sequence[int],
    *,
    window: int = 10,
    streams: int = 20,
    seed: int = 0,
    progress: WordProgress = lambda what, words: None,
) -> list[Gap]:
    """The gaps of a model without sampling, and for each number of samples."""
    method = subject.trained.method
    contenders = [Contender(subject.name, models_of(method))]
    counts = method.available(samples)
    if counts:
        contenders.append(Contender(subject.name, models_of(method, max(counts), seed), counts))
    return benchmark(
        contenders,
        Text("true", subject.tokens),
        texts,
        subject.vocabulary,
        unknown=subject.unknown,
        window=window,
        streams=streams,
        progress=lambda _, text, words: progress(f"{subject.name}, {text}", words),
    )


def passes(subject: Subject, texts: Sequence[Text], samples: Sequence[int]) -> int:
    """The number of words that `study_uncertainty` will report to `progress`."""
    ways = 2 if subject.trained.method.available(samples) else 1
    return ways * sum(len(text.tokens) - 1 for text in [Text("true", subject.tokens), *texts])


def gap_table(gaps: Sequence[Gap]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each text, model and number of samples; - for no mutual information."""
    headings = ["text", "run", "samples", "unknown", "entropy", "gap", "of E[H]", "of MI"]
    headings += ["AUROC -log p", "H", "MI"]
    return headings, [_gap_cells(gap) for gap in gaps]


def _gap_cells(gap: Gap) -> list[str]:
    several = _has_information(gap)
    return [
        gap.text,
        gap.model,
        str(gap.samples) if gap.samples else "none",
        f"{gap.unknown:.1%}",
        f"{gap.entropy:.3f}",
        f"{gap.entropy_gap:+.3f}",
        f"{gap.expected_entropy_gap:+.3f}" if several else "-",
        f"{gap.mutual_information_gap:+.4f}" if several else "-",
        f"{gap.auroc['surprise']:.3f}",
        f"{gap.auroc['entropy']:.3f}",
        f"{gap.auroc['mutual_information']:.3f}" if several else "-",
    ]


def _has_information(gap: Gap) -> bool:
    """Whether several sets of weights predicted: one alone has a mutual information of exactly 0."""
    return gap.mutual_information_gap != 0 or gap.auroc["mutual_information"] != 0.5


def described(examined: Sequence[Subject], split: str, window: int) -> str:
    """What the table shows, above it."""
    words = ", ".join(f"{n:,}" for n in sorted({len(s.tokens) - 1 for s in examined}))
    unigram = ", ".join(sorted({f"{unigram_entropy(s.tokens):.2f}" for s in examined}))
    lines = [
        f"{words} words of {split} text; entropies in nats/word (of word frequencies alone: {unigram}).",
        "Gaps are relative to the true text: the sum of that of E[H], the mean entropy of the weight",
        "samples, and that of MI, their mutual information (- for a single set of weights).",
        f"AUROC of classifying windows of {window} words by -log p of the words in the vocabulary, by",
        "entropy (H) and by mutual information.",
    ]
    return "\n".join([*lines, ""])


def render_gaps(gaps: Sequence[Gap]) -> str:
    return text_table(*gap_table(gaps))


def study_calibration(
    subject: Subject,
    samples: int,
    *,
    streams: int = 20,
    seed: int = 0,
    progress: WordProgress = lambda what, words: None,
) -> list[CalibrationRow]:
    """The calibration of a model without sampling, and averaged over `samples` if possible."""
    method = subject.trained.method
    ways = [0, *(method.available([samples]) if samples else [])]
    return [
        CalibrationRow(
            subject.name,
            count,
            calibration(
                models_of(method, count, seed),
                subject.tokens,
                subject.vocabulary,
                streams=streams,
                progress=lambda words: progress(f"{subject.name}, calibration", words),
            ),
        )
        for count in ways
    ]
