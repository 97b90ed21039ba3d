"""The report is self-contained and agrees with the commands."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from bayesrnn.cli import main


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    runs = [str(trained(method)) for method in ("lstm", "bbb", "sgld", "dropout")]
    main(
        ["report", *runs, "--out", str(path), "--samples", "3", "--streams", "1", "--words", "300"]
    )
    return path.read_text(encoding="utf-8")


class _Reader(HTMLParser):
    """Collects ids, addresses and text, and checks that every element is closed."""

    VOID = ("meta", "br", "path", "use", "image", "rect", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self._note(attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._note(attrs)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def _note(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.addresses.append(value)


@pytest.fixture(scope="module")
def read(page) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_nothing_is_fetched_from_elsewhere(page, read):
    assert all(address.startswith(("#", "data:")) for address in read.addresses)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "<script" not in page


def test_every_reference_within_the_page_has_one_target(page, read):
    assert [name for name, count in Counter(read.ids).items() if count > 1] == []
    targets = [address[1:] for address in read.addresses if address.startswith("#")]
    targets += re.findall(r"url\(#([^)]+)\)", page)
    assert len(targets) > 50
    assert set(targets) <= set(read.ids)


def test_figures_use_the_text_colour_of_the_page(page):
    assert "currentColor" in page
    assert "#121314" not in page
    assert "prefers-color-scheme: dark" in page


def test_it_agrees_with_compare(read, trained, capsys):
    main(["compare", str(trained("lstm")), str(trained("bbb")), "--json", "--samples", "3"])
    for row in json.loads(capsys.readouterr().out):
        assert f"{row['test']:.1f}" in read.text
        assert row["run"] in read.text
    for heading in (
        "Comparison",
        "Learning curves",
        "Uncertainty",
        "Calibration",
        "The posterior of bbb",
        "Pruning",
        "Weights",
        "Settings",
    ):
        assert heading in read.text
    assert not any("The posterior of lstm" in text for text in read.text)
    assert any('method = "bbb"' in text for text in read.text)
    for label in ("weights dropped (%)", "samples of the weights", "share of weights (%)", "epoch"):
        assert label in read.text
