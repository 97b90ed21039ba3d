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
        "Summary",
        "Comparison",
        "Learning curves",
        "Uncertainty",
        "Calibration",
        "The posterior of bbb",
        "Pruning",
        "Weights",
        "Text, coloured by uncertainty",
        "Generated text",
        "Settings",
    ):
        assert heading in read.text
    assert not any("The posterior of lstm" in text for text in read.text)
    assert any('method = "bbb"' in text for text in read.text)
    for label in ("weights dropped (%)", "samples of the weights", "share of weights (%)", "epoch"):
        assert label in read.text


def _report(*arguments: object) -> None:
    main(["report", *map(str, arguments), "--samples", "2", "--words", "200"])


def _spans(page: str, run: str) -> list[tuple[float, float]]:
    """Of each coloured word the strength of its colour, and its entropy."""
    text = page[page.index('<section id="text">') :]
    text = text[text.index(f"<h3>{run}</h3>") :]
    found = re.findall(r"--u:([\d.]+)' title='p \S+ entropy ([\d.]+)", text[: text.index("</p>")])
    return [(float(strength), float(entropy)) for strength, entropy in found]


def test_the_summary_comes_first_and_is_what_the_terminal_shows(trained, tmp_path, capsys):
    out = tmp_path / "page.html"
    _report(trained("lstm"), trained("bbb"), "--out", out)
    captured = capsys.readouterr()
    assert captured.err.count(" ...\n") > 5  # a line for each stage, for it is no terminal
    assert "evaluating bbb on the test text ..." in captured.err
    said = " ".join(captured.out.split())
    assert said.index("Perplexity (") < said.index("wrote ")
    page = out.read_text(encoding="utf-8")
    first = page[page.index("<section") : page.index("</section>")]
    assert 'id="summary"' in first
    for topic in ("Perplexity", "Calibration", "Telling real text from spoilt", "Pruning"):
        assert f"<strong>{topic}</strong>" in first
        assert f"- {topic} (" in said
    _report(trained("lstm"), trained("bbb"), "--out", out, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["summary"][0]["topic"] == "Perplexity"
    assert all(finding["sentence"] in said for finding in found["summary"])


def test_the_coloured_texts_have_one_scale(page):
    shown = {run: _spans(page, run) for run in ("lstm", "bbb", "sgld", "dropout")}
    highest = max(entropy for spans in shown.values() for _, entropy in spans)
    for spans in shown.values():
        assert len(spans) > 50
        assert all(abs(strength - entropy / highest) < 0.01 for strength, entropy in spans)
    assert f"{highest:.1f} nats (undecided)" in page


def test_the_same_share_of_words_is_marked_for_each_run(page):
    text = page[page.index('<section id="text">') :]
    counts = [part.count("class='marked'") for part in text.split("<h3>")[1:5]]
    assert counts[0] > 1
    assert set(counts) == {counts[0]}


def test_another_domain_is_named_or_left_out(page, trained, text_folder, tmp_path):
    assert "another domain" not in page
    out = tmp_path / "page.html"
    _report(trained("lstm"), "--out", out, "--other", text_folder)
    assert f"a text of another domain, <em>{text_folder.name}</em>: the text in" in out.read_text()


def test_the_page_is_the_same_again_but_for_its_date(trained, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    pages = []
    for seconds in ("0", "0", "86400"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
        _report(trained("bbb"), "--out", out, "--seed", "3")
        pages.append(out.read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert pages[0] != pages[2]
    assert pages[0].replace("1970-01-01", "1970-01-02") == pages[2]
    command = f"bayesrnn report {trained('bbb')} --out {out} --samples 2 --words 200 --seed 3"
    assert f"<code>{command}</code>" in pages[0]
