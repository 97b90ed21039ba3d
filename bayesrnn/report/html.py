"""The parts of a self-contained HTML page: sections, tables, figures and the page itself."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING

from bayesrnn import __version__
from bayesrnn.report import figures
from bayesrnn.training.experiment import Section
from bayesrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STACKED = 5
"""Tables of this many columns and more become lists on a narrow screen."""


def document(title: str, sections: Sequence[Section], foot: str = "") -> str:
    """The whole page."""
    style = resources.files("bayesrnn.report").joinpath("page.css").read_text("utf-8")
    contents = " · ".join(f'<a href="#{s.name}">{html.escape(s.title)}</a>' for s in sections)
    return _PAGE.format(
        title=html.escape(title),
        style=style,
        contents=contents,
        body="\n".join(
            f'<section id="{s.name}"><h2>{html.escape(s.title)}</h2>{s.body}</section>'
            for s in sections
        ),
        foot=foot,
    )


def foot(command: str) -> str:
    """The foot of a page: version, date and the command that made it.

    The date is the only part of a page that the runs do not determine. The variable SOURCE_DATE_EPOCH,
    seconds since 1970, sets it, so that two pages can be compared.
    """
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(seconds), UTC) if seconds.isdigit() else datetime.now(UTC)
    day = now.date().isoformat()
    return (
        f"<footer>Made by bayesrnn {__version__} on <time datetime='{day}'>{day}</time> with "
        f"<code>{html.escape(command)}</code></footer>"
    )


def picture(figure: Figure, name: str, description: str) -> str:
    """A figure as HTML."""
    svg = figures.inline_svg(figure, name, html.escape(description, quote=True))
    return f"<figure>{svg}</figure>"


def side_by_side(pictures: Sequence[str], note: str = "") -> str:
    """Figures in two columns, and the text about them.

    The text is above the figures, or beside the first if their number is odd: no row is half empty.
    """
    if note and len(pictures) % 2:
        return f"<div class='row'><div>{note}</div>{''.join(pictures)}</div>"
    return f"{note}<div class='row'>{''.join(pictures)}</div>"


def columns(texts: Sequence[str]) -> str:
    """Texts in two columns, or three for an odd number of them; one below the other on a narrow screen."""
    number = 1 if len(texts) == 1 else 3 if len(texts) % 2 else 2
    cells = "".join(f"<div>{text}</div>" for text in texts)
    return f"<div class='columns' style='--columns:{number}'>{cells}</div>"


def table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table; each cell also has its heading, for screens too narrow for the columns."""
    names = [html.escape(heading, quote=True) for heading in headings]
    out = io.StringIO()
    kind = " class='stacked'" if len(names) >= STACKED else ""
    out.write(f"<table{kind}><thead><tr>")
    out.writelines(f"<th>{name}</th>" for name in names)
    out.write("</tr></thead><tbody>")
    for row in cells:
        out.write("<tr>")
        out.writelines(
            f'<td data-name="{name}">{html.escape(cell)}</td>'
            for name, cell in zip(names, row, strict=True)
        )
        out.write("</tr>")
    out.write("</tbody></table>")
    return out.getvalue()


def settings(runs: Sequence[Run]) -> Section:
    """All settings of each run, collapsed."""
    parts = [
        f"<details><summary>{html.escape(str(run.folder))}</summary>"
        f"<pre>{html.escape(run.config.to_toml())}</pre></details>"
        for run in runs
    ]
    return Section("config", "Settings", "".join(parts))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<nav>{contents}</nav>
{body}
{foot}
</body>
</html>
"""
