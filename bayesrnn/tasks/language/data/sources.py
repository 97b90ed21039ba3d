"""The sources of text that --data can name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from bayesrnn.files import is_run, printable
from bayesrnn.tasks.language.data.beginning import Beginning
from bayesrnn.tasks.language.data.corpus import Source

NAMED = ("pydocs", "ptb", "wikitext-2")


def tokenizer(data: str) -> Callable[[str], list[str]]:
    """The tokeniser of a source, which new text for its models must use too."""
    if data == "pydocs":
        from bayesrnn.tasks.language.data.pydocs import words

        return words
    return str.split


def find_source(data: str, cache: Path, option: str = "--data") -> Source:
    """The source with a name (pydocs, ptb, wikitext-2), or the text in a folder or file."""
    if data == "pydocs":
        from bayesrnn.tasks.language.data.pydocs import PyDocs

        return PyDocs()
    if data == "ptb":
        from bayesrnn.tasks.language.data.ptb import penn_treebank

        return penn_treebank(cache)
    if data == "wikitext-2":
        from bayesrnn.tasks.language.data.wikitext import wikitext2

        return wikitext2(cache)
    from bayesrnn.tasks.language.data.text import text_files

    if not is_there(data):
        near = get_close_matches(data, NAMED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use a path, or one of {', '.join(NAMED)}."
        raise ValueError(f"{option} {printable(data)}: no such file or folder; {hint}")
    path = Path(data).expanduser()
    if is_run(path):
        raise ValueError(f"{printable(data)} is a run, not text; use --from to start from it.")
    return text_files(path)


def training_text(data: str, train_words: int, cache: Path) -> Source:
    """The source of --data, with the training split that --train-words leaves of it."""
    source = find_source(data, cache)
    return Beginning(source, train_words) if train_words else source


def check_own_text(run: Path, data: str) -> None:
    """Raise ValueError if the text that a run was trained on is not there any more."""
    if not is_there(data):
        raise ValueError(
            f"{run} was trained on {printable(data)}, which is not there; give --data with its present place."
        )


def is_there(data: str) -> bool:
    """Whether it is the name of a source, or a file or folder that exists."""
    if data in NAMED:
        return True
    try:
        return Path(data).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, ~ of nobody, no permission
        return False
