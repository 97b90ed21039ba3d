"""What a command says: text without commands to the terminal, and JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from bayesrnn.files import printable


def show(text: str = "", *, end: str = "\n") -> None:
    """Print text on standard output, at once; control characters are escaped."""
    _write(sys.stdout, printable(text) + end)


def note(text: str) -> None:
    """Print one line on standard error."""
    _write(sys.stderr, one_line(text) + "\n")


def show_json(value: Any) -> None:
    """Print a value as one line of JSON, which has no nan and no infinity: null instead."""
    _write(sys.stdout, as_json(value) + "\n")


def as_json(value: Any, **options: Any) -> str:
    """A value as JSON, with null for numbers that are not finite."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def one_line(text: str) -> str:
    """Text that stays on its line, whatever file name or word it quotes."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error, if that is a terminal; yields a function that changes its text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with console.status(Text(one_line(what))) as status:
        yield lambda text: status.update(Text(one_line(text)))


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
