"""What figures look like."""

from __future__ import annotations

from bayesrnn.report.figures import colour, line_style, marker


def test_no_two_lines_of_a_figure_look_alike():
    looks = {(colour(index), marker(index)) for index in range(24)}
    assert len(looks) == 24
    assert line_style(6)["color"] == line_style(0)["color"]  # colours do repeat
    assert line_style(6)["marker"] != line_style(0)["marker"]
