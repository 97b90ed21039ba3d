"""`bayesrnn score`: numbers and marks for each word of a text."""

from __future__ import annotations

import json
import re
from io import BytesIO, TextIOWrapper

import pytest
from rich.cells import cell_len

from bayesrnn.cli import main
from tests.cli.test_language_model import fail as fail

SENTENCE = "w1 w10 zebra w13 w4"


@pytest.fixture
def score(trained, capsys):
    """The output of `bayesrnn score` for a run of a method."""

    def run(method: str, *arguments: object) -> str:
        folder = trained(method)
        capsys.readouterr()
        main(["score", str(folder), *map(str, arguments)])
        return capsys.readouterr().out

    return run


def _json(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def _table(text: str) -> list[list[str]]:
    """The cells of the table, without its headings."""
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("word "))
    end = lines.index("", begin)
    return [re.split(r"\s\s+", line) for line in lines[begin + 1 : end]]


def test_a_sentence_is_a_table_of_all_its_words(score):
    shown, words = (
        score("bbb", "--text", SENTENCE),
        _json(score("bbb", "--text", SENTENCE, "--json")),
    )
    rows = _table(shown)
    assert [row[0] for row in rows] == [*SENTENCE.split(), "<eos>"]
    for row, word in zip(rows, words, strict=True):
        assert float(row[1]) == pytest.approx(word["probability"], rel=0.05)
        assert float(row[2]) == pytest.approx(word["surprise"], abs=0.006)
        assert float(row[3]) == pytest.approx(word["entropy"], abs=0.006)
        assert float(row[4]) == pytest.approx(word["mutual_information"], abs=0.0006)
    marks = [row[5] if len(row) > 5 else "" for row in rows]
    unlikely = max(range(5), key=lambda n: words[n]["surprise"])
    uncertain = max(range(5), key=lambda n: words[n]["mutual_information"])
    assert [n for n, mark in enumerate(marks) if "!" in mark] == [unlikely]
    assert [n for n, mark in enumerate(marks) if "~" in mark] == [uncertain]
    assert [n for n, mark in enumerate(marks) if "?" in mark] == [2]
    assert "6 words: perplexity" in shown
    for meaning in ("!  the word with the lowest", "~  the word with the highest", "?  not in the"):
        assert meaning in shown


def test_columns_are_aligned(score):
    table = score("bbb", "--text", "w1 猫 é w13").split("\n\n")[0].splitlines()
    ends = [
        cell_len(line[: re.search(r"\.\d{3}(?=\s|$)(?!.*\d)", line).end()]) for line in table[1:]
    ]
    assert len(ends) == 5
    assert set(ends) == {table[0].index("  mark")}  # mutual information, whatever a word's width


def test_a_text_is_what_a_file_with_it_is(score, tmp_path, monkeypatch):
    file = tmp_path / "text.txt"
    file.write_text("w1 w10\n\nw13\n")
    from_file = score("bbb", file, "--json")
    assert score("bbb", "--text", "w1 w10\nw13", "--json") == from_file
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(file.read_bytes())))
    assert score("bbb", "-", "--json") == from_file


def test_a_long_text_shows_what_stands_out(score, text_folder, capsys):
    file = text_folder / "test.txt"  # 60 lines of 9 words
    shown, words = score("bbb", file), _json(score("bbb", file, "--json"))
    count = round(0.05 * 540)
    ranked = sorted(
        (n for n in range(600) if words[n]["word"] != "<eos>"), key=lambda n: -words[n]["surprise"]
    )
    running = shown.split("\n\n")[0]
    assert len(running.splitlines()) == 60
    plain = re.sub(r"\[(\S+) [!~?]+\]", r"\1", running)
    assert plain.split() == file.read_text().split()
    assert len(re.findall(r"\[\S+ !~?\]", running)) == count
    assert len(re.findall(r"\[\S+ !?~\]", running)) == count
    rows = _table(shown)
    assert 10 <= len(rows) <= 20
    least = rows[0]
    assert float(least[2]) == pytest.approx(words[ranked[0]]["surprise"], abs=0.006)
    assert int(least[6]) == ranked[0] // 10 + 1
    begin = ranked[0] // 10 * 10
    before = [word["word"] for word in words[max(begin, ranked[0] - 4) : ranked[0]]]
    assert (least[7].split() if len(least) > 7 else []) == before
    assert "the 27 words (5%) with the lowest probability" in shown
    assert "10 are listed" in shown
    everything = score("bbb", file, "--all")
    assert [row[0] for row in _table(everything)] == [word["word"] for word in words]
    assert "are listed" not in everything


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("lstm", [], "a single set of weights"),
        ("bbb", ["--samples", 0], "needs two weight samples or more"),
        ("bbb", ["--samples", 1], "needs two weight samples or more"),
    ],
)
def test_without_samples_there_is_no_mutual_information(score, method, options, reason):
    shown = score(method, "--text", SENTENCE, *options)
    assert (
        f"no mutual information: {'this model has ' if method == 'lstm' else 'it '}{reason}"
        in shown
    )
    assert "~" not in shown
    assert shown.count("mutual information") == 1
    words = _json(score(method, "--text", SENTENCE, *options, "--json"))
    assert {word["mutual_information"] for word in words} == {None}


def test_kept_samples_have_mutual_information(score):
    assert "no mutual information" not in score("sgld", "--text", SENTENCE)
    words = _json(score("sgld", "--text", SENTENCE, "--json"))
    assert all(word["mutual_information"] > 0 for word in words)


def test_colours_say_what_the_marks_say(score, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    plain = score("bbb", "--text", SENTENCE)
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = score("bbb", "--text", SENTENCE)
    assert re.search(r"\x1b\[1(;4)?;31mw\d+|\x1b\[1(;[34])*;31mzebra", coloured)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in score("bbb", "--text", SENTENCE)


def test_wrong_input(fail, trained, tmp_path):
    run = trained("bbb")
    (tmp_path / "empty.txt").write_text("\n \n")
    cases = [
        ((run,), "give a text file, - for standard input, or --text"),
        ((run, tmp_path / "empty.txt", "--text", "w1"), "give a file or --text, not both"),
        ((run, "--text", " "), "--text has no words"),
        ((run, "--text", "keins davon"), "no word of the text"),
        ((run, tmp_path / "empty.txt"), "has no words"),
        ((run, tmp_path), "is a folder; name a file"),
        ((run, tmp_path / "none.txt"), "none.txt: no such file"),
        ((run, "--text", "w1", "--samples", -1), "samples = -1"),
    ]
    for arguments, message in cases:
        assert message in fail("score", *arguments), arguments
