"""The parts of a self-contained HTML page: sections, tables, figures and the page itself."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from bayesrnn.report import figures
from bayesrnn.training.experiment import Section
from bayesrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def document(title: str, sections: Sequence[Section]) -> str:
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
    )


def picture(figure: Figure, name: str, description: str, *, wide: bool = False) -> str:
    """A figure as HTML; a wide one scrolls on a narrow screen."""
    svg = figures.inline_svg(figure, name, html.escape(description, quote=True))
    kind = " class='wide'" if wide else ""
    return f"<figure{kind}>{svg}</figure>"


def side_by_side(pictures: Sequence[str]) -> str:
    return f"<div class='row'>{''.join(pictures)}</div>"


def table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    out.write("<div class='scroll'><table><thead><tr>")
    out.writelines(f"<th>{html.escape(heading)}</th>" for heading in headings)
    out.write("</tr></thead><tbody>")
    for row in cells:
        out.write("<tr>")
        out.writelines(f"<td>{html.escape(cell)}</td>" for cell in row)
        out.write("</tr>")
    out.write("</tbody></table></div>")
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
</body>
</html>
"""
