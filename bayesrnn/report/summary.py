"""The summary of a page in words: for each question the figures, and which run is ahead."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bayesrnn.training.experiment import Section

EQUAL = 0.005
"""A relative difference below this is too small to matter."""


@dataclass(frozen=True)
class Finding:
    """The answer to one question about the runs."""

    topic: str
    meaning: str
    """What the figure is, in half a sentence."""
    result: str
    """The figures, and which run is ahead."""
    ahead: str | None
    """The run that is ahead; None if they are equal or are not compared."""

    @property
    def sentence(self) -> str:
        return f"{self.topic} ({self.meaning}): {self.result}."

    def as_json(self) -> dict[str, str | None]:
        return {"topic": self.topic, "sentence": self.sentence, "ahead": self.ahead}


@dataclass(frozen=True)
class Summary(Section):
    """The section that a page begins with, and the same as plain text."""

    lead: str = ""
    """The answer in one sentence, if there is one."""
    findings: tuple[Finding, ...] = ()

    def as_text(self, width: int = 100) -> str:
        """The lead and an item for each finding, in lines of at most `width` characters."""
        lines = textwrap.wrap(self.lead, width)
        for finding in self.findings:
            lines += textwrap.wrap(
                finding.sentence, width, initial_indent="- ", subsequent_indent="  "
            )
        return "\n".join(lines)


def summary(
    findings: Sequence[Finding], runs: Collection[str], bayesian: Collection[str]
) -> Summary:
    """The section, with its HTML."""
    lead = _tally(findings, runs, bayesian)
    items = "".join(
        f"<li><strong>{html.escape(f.topic)}</strong> "
        f"<span class='faint'>({html.escape(f.meaning)})</span> {html.escape(_capital(f.result))}.</li>"
        for f in findings
    )
    said = f"<p class='lead'>{html.escape(lead)}</p>" if lead else ""
    body = f"{said}<ul class='findings'>{items}</ul>"
    return Summary("summary", "Summary", body, lead, tuple(findings))


def judge(
    topic: str,
    meaning: str,
    values: Mapping[str, float],
    show: Callable[[float], str],
    *,
    bayesian: Collection[str] = (),
    higher_is_better: bool = False,
) -> Finding | None:
    """Which run is ahead by one figure; None if no run has a finite one.

    Of runs of both kinds, the best Bayesian run is compared with the best of the others; of runs of one kind,
    the best with the second best.
    """
    finite = {run: value for run, value in values.items() if math.isfinite(value)}
    order = sorted(finite, key=lambda run: finite[run], reverse=higher_is_better)
    if not order:
        return None
    if len(order) == 1:
        return Finding(topic, meaning, f"{order[0]} has {show(finite[order[0]])}", None)
    kinds = [[r for r in order if r in bayesian], [r for r in order if r not in bayesian]]
    both = all(kinds)
    first, second = (kinds[0][0], kinds[1][0]) if both else order[:2]
    best = min((first, second), key=order.index)
    ahead = None if _equal(finite[first], finite[second]) else best
    named = first
    if both:
        alone = len(kinds[0]) == 1
        named = f"the Bayesian run {first}" if alone else f"the best Bayesian run, {first},"
    against = f"{show(finite[second])} for {second}"
    against += ", the best of the others" if both and len(kinds[1]) > 1 else ""
    if ahead is None:
        result = f"{named} and {second} are equal, with {show(finite[first])} and {against}"
    elif ahead == first:
        result = f"{named} is ahead, with {show(finite[first])} against {against}"
    else:
        result = f"{named} is not ahead: it has {show(finite[first])} against {against}"
    return Finding(topic, meaning, result, ahead)


def _tally(findings: Sequence[Finding], runs: Collection[str], bayesian: Collection[str]) -> str:
    """On which topics the Bayesian runs are ahead, in one sentence; empty if all runs are of one kind."""
    ours = [run for run in runs if run in bayesian]
    if not ours or len(ours) == len(runs):
        return ""
    topics = {
        "ahead on": [f.topic.lower() for f in findings if f.ahead in ours],
        "not ahead on": [f.topic.lower() for f in findings if f.ahead and f.ahead not in ours],
        "equal on": [f.topic.lower() for f in findings if f.ahead is None],
    }
    said = "; ".join(f"{how} {_listed(names)}" for how, names in topics.items() if names)
    who = (
        f"The Bayesian run, {ours[0]}, is" if len(ours) == 1 else "The best of the Bayesian runs is"
    )
    return f"{who} {said}." if said else ""


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= EQUAL * max(abs(one), abs(other))


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _capital(text: str) -> str:
    """With a capital where a sentence begins; a run's name remains as it is."""
    return f"T{text[1:]}" if text.startswith("the ") else text
