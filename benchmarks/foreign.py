"""Why text of another domain looks familiar: what `<unk>` does to each score of a window of words.

    python benchmarks/foreign.py runs/bbb [--other pydocs] [--samples 10] [--words 12000]

The first table has means over the words of a text by whether the word, or the one before it, is known. The
second has the AUROC of distinguishing windows of ten words of each text from the true one, by several scores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from bayesrnn.evaluation.ranks import auroc
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.evaluation.beliefs import beliefs, models_of
from bayesrnn.tasks.language.trained import open_trained
from bayesrnn.tasks.language.uncertainty_study import Subject, Text, other_texts, subjects

WINDOW, STREAMS = 10, 20
PENALTY = 5.0
"""Nats by which an unknown word is charged: that it is one of e^5 words that `<unk>` stands for."""

Windows = dict[str, Tensor]
"""By name, (windows, words of a window): entropy, information, surprise, and whether words are unknown."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a folder of `bayesrnn train`")
    parser.add_argument("--other", help="text of another domain; pydocs if most words are known")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--words", type=int, default=12_000)
    options = parser.parse_args()
    (model,) = open_trained(options.run)
    (subject,) = subjects([model], split="test", data=None, words=options.words)
    others = other_texts(subject, other=options.other, noise=(0.1, 0.5))
    texts = {
        text.name: windows(subject, text.tokens, options.samples)
        for text in [Text("true", subject.tokens), *others]
    }
    headings = ["text", "unknown", "MI after a word", "MI after `<unk>`", "H after a word"]
    headings += ["H after `<unk>`", "-log p of words", "-log p of `<unk>`"]
    print(markdown_table(headings, [[name, *_parts(text)] for name, text in texts.items()]))
    own = scores(texts.pop("true"))
    rows = []
    for score, inside in own.items():
        found = [auroc(inside, scores(text)[score]) for text in texts.values()]
        rows.append([score, *(f"{value:.3f}" for value in found)])
    print()
    print(markdown_table(["AUROC by", *texts], rows))


def windows(subject: Subject, tokens: Tensor, samples: int) -> Windows:
    """The beliefs about each word, by windows."""
    models = models_of(subject.trained.method, samples)
    parts: dict[str, list[Tensor]] = {}
    passes = beliefs(models, tokens, subject.vocabulary, streams=STREAMS, window=WINDOW)
    for segment, found in passes:
        (belief,) = found.values()
        whole = len(segment.x) // WINDOW * WINDOW
        shape = (-1, WINDOW, segment.x.shape[1])
        complete = segment.counted[:whole].view(shape).all(1)
        columns = {
            "entropy": belief.entropy,
            "information": belief.mutual_information,
            "surprise": -belief.log_prob,
            "unknown": segment.y == subject.unknown,
            "after unknown": segment.x == subject.unknown,
        }
        for name, column in columns.items():
            by_window = column[:whole].float().view(shape).transpose(1, 2)[complete]
            parts.setdefault(name, []).append(by_window)
    return {name: torch.cat(found) for name, found in parts.items()}


def scores(text: Windows) -> dict[str, Tensor]:
    """What a window may be classified by."""
    known = text["unknown"] == 0
    known_surprise = torch.where(known, text["surprise"], 0).sum(1) / known.sum(1)
    return {
        "-log p of known words": torch.where(known.any(1), known_surprise, torch.inf),
        "-log p": text["surprise"].mean(1),
        f"-log p, {PENALTY:g} nats more for `<unk>`": (
            text["surprise"] + PENALTY * text["unknown"]
        ).mean(1),
        "entropy": text["entropy"].mean(1),
        "mutual information": text["information"].mean(1),
        "share of `<unk>`": text["unknown"].mean(1),
    }


def _parts(text: Windows) -> list[str]:
    after, unknown = text["after unknown"] > 0, text["unknown"] > 0
    return [
        f"{text['unknown'].mean():.1%}",
        f"{text['information'][~after].mean():.3f}",
        f"{text['information'][after].mean():.3f}",
        f"{text['entropy'][~after].mean():.2f}",
        f"{text['entropy'][after].mean():.2f}",
        f"{text['surprise'][~unknown].mean():.2f}",
        f"{text['surprise'][unknown].mean():.2f}",
    ]


if __name__ == "__main__":
    main()
