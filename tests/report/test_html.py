"""The parts of the page."""

from __future__ import annotations

import re

from bayesrnn import __version__
from bayesrnn.report.coloured import coloured, legend
from bayesrnn.report.html import columns, foot, side_by_side, table
from bayesrnn.report.progress import Stages, Work
from bayesrnn.tasks.language.evaluation.words import ScoredWord


def test_no_row_of_figures_is_half_empty():
    for number in range(1, 6):
        body = side_by_side(["<figure></figure>"] * number, "<p>note</p>")
        row = body[body.index("<div class='row'>") :]
        cells = row.count("<figure>") + row.count("<p>note</p>")
        assert cells % 2 == 0
        assert body.count("note") == 1


def test_texts_fill_their_rows():
    found = {n: re.findall(r"--columns:(\d)", columns(["x"] * n))[0] for n in (1, 2, 3, 4)}
    assert found == {1: "1", 2: "2", 3: "3", 4: "2"}


def test_a_wide_table_has_a_heading_in_each_cell():
    wide = table(["run", "<a>", "b", "c", "d"], [["lstm", "1", "2", "3", "<4>"]])
    assert "class='stacked'" in wide
    assert '<td data-name="&lt;a&gt;">1</td>' in wide
    assert "&lt;4&gt;" in wide
    assert "stacked" not in table(["run", "a"], [["lstm", "1"]])


def test_the_foot_has_version_date_and_command(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    found = foot("bayesrnn report 'a <b>'")
    assert f"bayesrnn {__version__} on <time datetime='1970-01-02'>1970-01-02</time>" in found
    assert "bayesrnn report 'a <b>'" in found.replace("&#x27;", "'").replace("&lt;b&gt;", "<b>")
    assert "<b>" not in found
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert "1970" not in foot("x")


def test_words_are_coloured_on_the_given_scale():
    words = [ScoredWord("<a>", False, 0.5, 0.7, 1.0, 0.1), ScoredWord("b", False, 0.1, 2.3, 4.0, 0)]
    found = coloured(words, 4.0, marked={1})
    assert re.findall(r"--u:([\d.]+)", found) == ["0.25", "1.00"]
    assert found.count("class='marked'") == 1
    assert found.index("class='marked'") > found.index("&lt;a&gt;")
    assert "entropy 4.00 nats" in found
    assert "4.0 nats" in legend(4.0)


def test_stages_advance_when_the_next_begins():
    told: list[object] = []
    stages = Stages(Work(told.append, told.append, told.append), 2)
    stages("one")
    stages("two")
    assert told == [2, "one", 1, "two"]


def test_a_progress_that_knows_only_names_is_told_only_names():
    told: list[str] = []
    work = Work.of(told.append)
    work.expect(3)
    work.begin("one")
    work.advance(1)
    assert told == ["one"]
    assert Work.of(work) is work
