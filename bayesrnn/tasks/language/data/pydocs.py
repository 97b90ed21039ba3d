"""A corpus that needs no download: the English documentation inside every CPython.

The topics of `help()` and the docstrings of the standard library, about 390,000 tokens; the exact text
depends on the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from bayesrnn.data.verified import remembered
from bayesrnn.files import sha256_of_text

# Not the library's own documentation: tests, third-party packages and generated files.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"}
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[.,;:!?()]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_FEWEST_TOKENS = 100_000
_VERSION = 1  # of the sentences made from the same text


class PyDocs:
    """Sentences of Python's documentation, in lower case, with numbers as N."""

    name = "pydocs"

    def lines(self, split: str) -> Iterator[list[str]]:
        # Whole documents are held out, chosen by name: no sentence of a test document is trained on, also
        # under another version of Python.
        for name, sentences in self._documents:
            if _split_of(name) == split:
                yield from sentences

    def fingerprint(self) -> str:
        return f"{_VERSION} {sys.version} {sysconfig.get_path('stdlib')}"

    def digest(self, memory: Path | None = None) -> str:
        """A digest of all sentences."""
        if memory is None:
            return self._read_digest()
        fingerprint = self.fingerprint()
        return remembered(memory, sha256_of_text(fingerprint), fingerprint, self._read_digest)

    def _read_digest(self) -> str:
        digest = hashlib.sha256()
        for document in self._documents:
            digest.update(json.dumps(document).encode())
        return digest.hexdigest()

    @cached_property
    def _documents(self) -> list[tuple[str, list[list[str]]]]:
        """The name and sentences of each document."""
        seen: set[tuple[str, ...]] = set()
        documents = []
        for name, text in [*_topics(), *_docstrings()]:
            sentences = []
            for sentence in _sentences(text):
                key = tuple(sentence)  # many docstrings repeat a sentence: keep it once
                if len(sentence) >= 3 and key not in seen:
                    seen.add(key)
                    sentences.append(sentence)
            if sentences:
                documents.append((name, sentences))
        tokens = sum(len(sentence) + 1 for _, sentences in documents for sentence in sentences)
        if tokens < _FEWEST_TOKENS:
            raise ValueError(
                f"this Python has only {tokens} tokens of documentation inside (stripped of its "
                "docstrings or topics); give a text of your own with --data, or use a full CPython."
            )
        return documents


def words(text: str) -> list[str]:
    """Split text into lower-case words and punctuation marks, with numbers as N."""
    return ["N" if word.isdigit() else word for word in _WORD.findall(text.lower())]


def _split_of(name: str) -> str:
    percentile = zlib.crc32(name.encode()) % 100
    return "train" if percentile < 88 else "valid" if percentile < 94 else "test"


def _topics() -> list[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return [(f"topic {name}", topics[name]) for name in sorted(topics)]


def _docstrings() -> Iterator[tuple[str, str]]:
    """The name and docstrings of each file of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED.intersection(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, OSError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        text = "\n\n".join(docstring for docstring in found if docstring)
        if text:
            yield path.relative_to(root).as_posix(), text


def _sentences(text: str) -> Iterator[list[str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        if _is_code(paragraph):
            continue
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            yield words(sentence)


def _is_code(paragraph: str) -> bool:
    """Whether a paragraph is an example, grammar or table: under two thirds letters and spaces."""
    if ">>>" in paragraph or "::=" in paragraph:
        return True
    plain = sum(character.isalpha() or character.isspace() for character in paragraph)
    return 3 * plain < 2 * len(paragraph)
