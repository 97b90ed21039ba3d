"""Rows of results as aligned text or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bayesrnn.files import printable


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces: the first to the left, the others to the right."""
    headings, *rows = [[_cell(cell) for cell in row] for row in [headings, *rows]]
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    shown = [[_cell(cell).replace("|", "\\|") for cell in row] for row in [headings, rule, *rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in shown)


def _cell(text: str) -> str:
    """Text on one line, and without control characters."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
