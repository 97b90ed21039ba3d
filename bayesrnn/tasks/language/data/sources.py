"""The sources of text that --data can name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from bayesrnn.files import printable
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

    if not _exists(data):
        near = get_close_matches(data, NAMED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use a path, or one of {', '.join(NAMED)}."
        raise ValueError(f"{option} {printable(data)}: no such file or folder; {hint}")
    return text_files(Path(data).expanduser())


def _exists(data: str) -> bool:
    try:
        return Path(data).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, ~ of nobody, no permission
        return False
