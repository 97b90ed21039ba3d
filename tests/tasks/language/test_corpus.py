"""Corpora from every kind of source."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
import zipfile
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from bayesrnn.data.download import cache_folder
from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.tasks.language.data import ptb as ptb_module
from bayesrnn.tasks.language.data import pydocs as pydocs_module
from bayesrnn.tasks.language.data.beginning import Beginning
from bayesrnn.tasks.language.data.corpus import load_corpus, load_split
from bayesrnn.tasks.language.data.sources import find_source, tokenizer
from bayesrnn.tasks.language.data.text import text_files
from bayesrnn.tasks.language.data.wikitext import wikitext2


def _load(data, size=None):
    return load_corpus(find_source(str(data), cache_folder()), size, cache_folder())


def test_ptb_is_what_everyone_uses(ptb):
    corpus = _load(ptb)
    assert len(corpus.vocabulary) == 10_000
    words = [len(split) - 1 for split in (corpus.train, corpus.valid, corpus.test)]
    assert words == [929_589, 73_760, 82_430]
    last = " ".join(corpus.vocabulary.words[i] for i in corpus.test[-9:-1].tolist())
    assert last == "we may not see them here with us"


def test_pydocs_comes_with_python():
    source = find_source("pydocs", cache_folder())
    corpus = load_corpus(source, 5000, cache_folder())
    sizes = [len(split) for split in (corpus.train, corpus.valid, corpus.test)]
    assert len(corpus.vocabulary) == 5000
    assert 300_000 < sum(sizes) < 480_000
    assert all(0.04 < size / sum(sizes) < 0.08 for size in sizes[1:])
    # Most words of documents never seen are known; how many depends on the version of Python.
    assert (corpus.test == corpus.vocabulary.unknown).float().mean() < 0.12
    train = {tuple(line) for line in source.lines("train")}
    assert not any(tuple(line) in train for line in source.lines("test"))  # nothing was leaked


def test_new_text_is_tokenised_like_the_corpus():
    assert tokenizer("pydocs")("The 3 values, don't!") == ["the", "N", "values", ",", "don't", "!"]
    assert tokenizer("/some/folder")("The 3 values,") == ["The", "3", "values,"]


def test_a_python_stripped_of_its_documentation_says_so(monkeypatch):
    monkeypatch.setattr(pydocs_module, "_docstrings", lambda: [])
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="only 0 tokens of documentation inside"):
        _load("pydocs")


def test_the_vocabulary_is_of_the_training_text_alone(tmp_path):
    (tmp_path / "train.txt").write_text("a b b c c c\n")
    (tmp_path / "valid.txt").write_text("a d d d d\n")
    (tmp_path / "test.txt").write_text("e <unk> a\n")
    corpus = _load(tmp_path)
    assert corpus.vocabulary.words == ("c", "b", END, "a", UNKNOWN)
    decoded = [corpus.vocabulary.words[i] for i in corpus.test.tolist()]
    assert decoded == [END, UNKNOWN, UNKNOWN, "a", END]
    small = _load(tmp_path, 4)
    assert small.vocabulary.words == ("c", "b", END, UNKNOWN)


def test_one_file_is_split_and_every_line_is_in_one_split(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line{i} word\n\n" for i in range(100)))
    source = text_files(path)
    lines = [tuple(line) for split in ("train", "valid", "test") for line in source.lines(split)]
    assert sorted(lines) == sorted((f"line{i}", "word") for i in range(100))
    assert len(list(source.lines("valid"))) == len(list(source.lines("test"))) == 5


@pytest.mark.parametrize("names", [("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
                                   ("my_train.txt", "my-dev.txt", "test.txt")])  # fmt: skip
def test_splits_are_found_by_name(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text(f"{name} x\n")
    source = text_files(tmp_path)
    found = [next(iter(source.lines(split)))[0] for split in ("train", "valid", "test")]
    assert found == list(names)


def test_tokens_live_in_a_file_and_follow_the_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c\n" * 40)
    first = _load(path)
    assert first.train.untyped_storage().nbytes() == 4 * len(first.train)
    cached = sorted(cache_folder().iterdir())
    again = _load(path)
    assert torch.equal(first.train, again.train)
    assert cached == sorted(cache_folder().iterdir())
    path.write_text("a b c d\n" * 40)
    os.utime(path, ns=(1, 1))
    assert len(_load(path).train) > len(first.train)


def test_unigram_entropy_of_ptb_by_hand(ptb):
    """The empirical distribution of the test words has 6.33 nats per word [F17, sec. 5.1.1]."""
    tokens = _load(ptb).test[1:]
    counts = torch.bincount(tokens.long()).double()
    p = counts[counts > 0] / len(tokens)
    by_hand = Counter()
    for line in (ptb / "ptb.test.txt").read_text().splitlines():
        by_hand.update([*line.split(), END])
    total = sum(by_hand.values())
    entropy = -sum(c / total * math.log(c / total) for c in by_hand.values())
    assert -(p * p.log()).sum().item() == pytest.approx(entropy, rel=1e-12)
    assert entropy == pytest.approx(6.33, abs=0.01)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none", "no such file or folder; use a path, or one of pydocs"),
        (lambda folder: "pydoc", "did you mean pydocs"),
        (lambda folder: folder, "has no text"),
        (lambda folder: _write(folder, "train.txt", b"a b\n").parent, "none for valid, test"),
        (lambda folder: _write(folder, "t.txt", b"a\nb \xff\n" * 30), "t.txt, line 2: not UTF-8"),
        (lambda folder: _write(folder, "t.txt", b""), "train split of t has no words"),
        (lambda folder: _write(folder, "t.txt", b"word"), "valid split of t has no words"),
    ],
)
def test_bad_text(tmp_path, make, message):
    data = make(tmp_path)
    with pytest.raises(ValueError, match=message):
        _load(data)


def _write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_a_cache_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    blocked = _write(tmp_path, "file", b"")
    monkeypatch.setenv("BAYESRNN_CACHE", str(blocked / "inside"))
    with pytest.raises(ValueError, match="Set BAYESRNN_CACHE to a folder"):
        _load(_write(tmp_path, "t.txt", b"a b\n" * 40))


def test_a_file_that_is_not_a_vocabulary(tmp_path):
    with pytest.raises(ValueError, match="is not a vocabulary"):
        Vocabulary.read(_write(tmp_path, "v.txt", b"a\nb\n"))


# ---------------------------------------------------------------------- downloads


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path):
    """A local web server, its folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def _ptb_files(folder: Path) -> dict[str, str]:
    sums = {}
    for split in ("train", "valid", "test"):
        content = f"the {split} text\n".encode() * 5
        _write(folder, f"ptb.{split}.txt", content)
        sums[f"ptb.{split}.txt"] = hashlib.sha256(content).hexdigest()
    return sums


def test_ptb_is_downloaded_once(server, monkeypatch):
    folder, address = server
    monkeypatch.setattr(ptb_module, "SHA256", _ptb_files(folder))
    monkeypatch.setenv("BAYESRNN_PTB_URL", address)
    corpus = _load("ptb")
    assert set(corpus.vocabulary.words) == {"the", "train", "text", END, UNKNOWN}
    for file in folder.iterdir():
        file.unlink()
    assert torch.equal(_load("ptb").train, corpus.train)


def test_a_wrong_checksum_keeps_nothing(server, monkeypatch):
    folder, address = server
    monkeypatch.setattr(ptb_module, "SHA256", _ptb_files(folder))
    monkeypatch.setenv("BAYESRNN_PTB_URL", address)
    _write(folder, "ptb.valid.txt", b"something else")
    with pytest.raises(ValueError, match=r"ptb.valid.txt has the wrong checksum.*Nothing was kept"):
        _load("ptb")
    assert [p.name for p in (cache_folder() / "ptb").iterdir()] == ["ptb.train.txt"]


def test_a_server_that_does_not_answer(monkeypatch, server):
    _, address = server
    monkeypatch.setenv("BAYESRNN_PTB_URL", address)
    with pytest.raises(ValueError, match="cannot download .*give their folder with --data"):
        _load("ptb")


def test_wikitext_is_unpacked(server, monkeypatch, tmp_path):
    folder, address = server
    with zipfile.ZipFile(folder / "w.zip", "w") as archive:
        for split in ("train", "valid", "test"):
            archive.writestr(f"wikitext-2/wiki.{split}.tokens", f" \n = {split} = \n words here \n")
    monkeypatch.setenv("BAYESRNN_WIKITEXT2_URL", f"{address}/w.zip")
    md5 = hashlib.md5((folder / "w.zip").read_bytes()).hexdigest()
    source = wikitext2(cache_folder(), md5=md5)
    assert list(source.lines("valid")) == [[], ["=", "valid", "="], ["words", "here"]]
    vocabulary = Vocabulary.build(source.lines("train"))
    assert len(load_split(source, "test", vocabulary, cache_folder())) == 1 + 5 + 3
    with pytest.raises(ValueError, match="wrong checksum"):
        wikitext2(tmp_path / "other")


def test_the_beginning_of_a_text(text_folder):
    source = find_source(str(text_folder), cache_folder())
    part = Beginning(source, 99)  # nine whole lines of nine words and <eos>
    whole, less = (load_corpus(s, None, cache_folder()) for s in (source, part))
    assert len(less.train) == 91
    assert list(part.lines("train")) == list(source.lines("train"))[:9]
    assert len(less.valid) == len(whole.valid)
    assert len(less.test) == len(whole.test)
    digests = {source.digest(), part.digest(), Beginning(source, 100).digest()}
    assert len(digests) == 3
