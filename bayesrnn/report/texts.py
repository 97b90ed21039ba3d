"""The texts that runs are examined on, in each run's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from bayesrnn.data.corpus import load_split
from bayesrnn.data.sources import find_source
from bayesrnn.training.exported import Exported
from bayesrnn.training.run import Run, RunFolder


def labels(runs: Sequence[RunFolder | Exported]) -> list[str]:
    """What runs are called beside each other: by name, or by the whole path where names are the same."""
    names = [name_of(run) for run in runs]
    return [
        name if names.count(name) == 1 else str(run.folder)
        for run, name in zip(runs, names, strict=True)
    ]


def name_of(run: RunFolder | Exported) -> str:
    """What a run is called in tables and pictures: the last part of its path."""
    name = run.folder.name
    return name if name not in ("", "..") else run.folder.resolve().name


def tokens_of(
    run: Run | Exported, split: str, data: str | None, cache: Path, option: str = "--data"
) -> Tensor:
    """A split of a run's own text, or of another, of which it must know at least one word."""
    name = data or run.config.data
    tokens = load_split(find_source(name, cache, option), split, run.vocabulary, cache)
    if share_known(run, tokens) == 0:
        raise ValueError(f"{run.folder} knows not one word of {name}; is it the same language?")
    return tokens


def share_known(run: Run | Exported, tokens: Tensor) -> float:
    """The share of words that are in the run's vocabulary."""
    words = tokens[tokens != run.vocabulary.end]
    return (words != run.vocabulary.unknown).double().mean().item() if len(words) else 0.0
