"""Text with each word coloured by the entropy of the prediction at its place."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from typing import Protocol


class PredictedWord(Protocol):
    """A word and the prediction at its place, in nats."""

    @property
    def word(self) -> str: ...
    @property
    def probability(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def mutual_information(self) -> float: ...


def coloured(
    words: Sequence[PredictedWord],
    highest: float,
    *,
    marked: Collection[int] = (),
    line_end: str | None = None,
) -> str:
    """The words as HTML: the nearer to `highest` the entropy, the stronger the colour.

    Those at the places `marked` are underlined, and `line_end` is shown as a line break.
    """
    spans = []
    for place, word in enumerate(words):
        if word.word == line_end:
            spans.append("<br>")
            continue
        title = (
            f"p {word.probability:.2g}, entropy {word.entropy:.2f} nats, "
            f"mutual information {word.mutual_information:.3f} nats"
        )
        mark = " class='marked'" if place in marked else ""
        strength = min(1.0, word.entropy / (highest or 1.0))
        spans.append(
            f"<span{mark} style='--u:{strength:.2f}' title='{title}'>{html.escape(word.word)}</span>"
        )
    return " ".join(spans)


def legend(highest: float, marks: str = "") -> str:
    """The scale of the colours, and what is underlined."""
    line = f" <span class='marked'>Underlined</span>: {html.escape(marks)}." if marks else ""
    return (
        "<p class='legend'>Entropy of the prediction: 0 nats (certain) <span class='scale'></span> "
        f"{highest:.1f} nats (undecided).{line}</p>"
    )
