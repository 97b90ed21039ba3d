"""Runs the command in this process and says what was wrong with how it ended."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from bayesrnn.cli import main

SECONDS = 30
"""More than any command on the tiny runs of these tests takes, also on a busy machine."""

SEED = int(os.environ.get("BAYESRNN_FAULTS_SEED", 18))
"""Of what is random in these tests."""


def cases(few: int) -> int:
    """How many cases to try: a few, or as many as the environment asks for."""
    return int(os.environ.get("BAYESRNN_FAULTS", few))


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    error: BaseException | None
    seconds: float

    def fault(self) -> str | None:
        """What is wrong with it, if anything."""
        if self.error is not None:
            return f"traceback: {self.error!r}"[:300]
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if self.seconds > SECONDS:
            return f"took {self.seconds:.0f} s"
        if self.code and not (self.err + self.out).strip():
            return "failed without a word"
        if "Traceback" in self.err:
            return "traceback in its output"
        lines = [line for line in self.err.splitlines() if line.startswith("bayesrnn: ")]
        if self.code == 2 and lines and (len(lines) > 1 or len(lines[-1]) > 3000):
            return f"{len(lines)} lines of error, of {len(self.err)} characters"
        found = controls(self.out + self.err)
        if found:
            return f"control characters {found!r}"
        if self.code == 0 and "--json" in self.arguments:
            return _bad_json(self.out)
        return None

    def __str__(self) -> str:
        return f"{' '.join(a[:60] for a in self.arguments)!a} -> {self.code}: {self.fault()}"


def run(*arguments: object, encoding: str = "utf-8") -> Outcome:
    """Run `bayesrnn ARGUMENTS...` here, with standard output in this encoding."""
    given = tuple(map(str, arguments))
    error, code = None, 0
    out = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    began = time.monotonic()
    with redirect_stdout(out), redirect_stderr(err), _no_input():
        try:
            main(given)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as raised:
            error = raised
    seconds = time.monotonic() - began
    return Outcome(given, code, _text(out), _text(err), error, seconds)


def controls(text: str) -> str:
    """The characters of a text that command a terminal, or turn it around."""
    return "".join(
        c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"
    )[:20]


def _bad_json(text: str) -> str | None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        for line in text.splitlines():
            json.loads(line, parse_constant=refuse)
    except ValueError as error:
        return f"invalid JSON: {error}"
    return None


def _text(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode("utf-8")  # pyright: ignore


@contextmanager
def _no_input() -> Iterator[None]:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"w1 w2 w3\n"), "utf-8")
    try:
        yield
    finally:
        sys.stdin = before
