"""The blocks of README.md and docs/*.md, and how they are run: a new document or block joins by itself.

Python blocks run in order, with one set of names for each document. Where a reader needs no more than what is
shown, but the test does (a file that a long command would have written), an HTML comment directly before the
block has it:

    <!-- test
    write_small_file("small.safetensors")
    -->

A diff runs as it is after the change; `before_change` gives it as it was before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"python", "diff", "sh", "toml", "json", ""}
"""Of blocks; one without a language is output or a drawing."""

_BLOCK = re.compile(
    r"(?:^<!-- test\n(?P<setup>.*?)^-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: Path
    section: str
    """The heading it stands under; empty for the beginning of a page."""
    line: int
    """Of its first line of text."""
    language: str
    text: str
    setup: str = ""
    """What the test runs before it, and the reader does not see."""

    @property
    def id(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, *languages: str, section: str | None = None) -> list[Block]:
    """The blocks of a page, or those in these languages, or of a section."""
    return [
        block
        for block in _blocks(page.read_text(), page)
        if (not languages or block.language in languages) and section in (None, block.section)
    ]


def run(block: Block, names: dict[str, Any]) -> None:
    """Execute a block of python, or a diff as it is after the change; an error names the page's line."""
    exec(block.setup, names)
    text = after_change(block) if block.language == "diff" else block.text
    exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)


def after_change(block: Block) -> str:
    return _side(block.text, dropped="-")


def before_change(block: Block) -> str:
    return _side(block.text, dropped="+")


def inline_code(page: Path) -> list[str]:
    """The code in the text of a page, outside its blocks."""
    return re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", _BLOCK.sub("", page.read_text()))


def _blocks(text: str, page: Path) -> Iterator[Block]:
    headings = [(match.start(), match[1]) for match in re.finditer(r"^##+ (.*)$", text, re.M)]
    for match in _BLOCK.finditer(text):
        section = next((h for start, h in reversed(headings) if start < match.start()), "")
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(
            page, section, line, match["language"], match["text"], setup=match["setup"] or ""
        )


def _side(diff: str, *, dropped: str) -> str:
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith(dropped))
