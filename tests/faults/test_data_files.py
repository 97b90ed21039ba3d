"""Data files under fault and attack: the cache of tokens, downloads, and the files of each experiment."""

from __future__ import annotations

import codecs
import fcntl
import gzip
import hashlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from bayesrnn.data import download as download_module
from bayesrnn.data.download import cache_folder, download
from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.files import PREFIX, SUFFIX
from bayesrnn.storage import save_tensors
from bayesrnn.tasks.captions import features as features_module
from bayesrnn.tasks.captions.data import coco as coco_module
from bayesrnn.tasks.captions.data.coco import load_coco
from bayesrnn.tasks.captions.data.images import decode, read_file
from bayesrnn.tasks.captions.features import load_features
from bayesrnn.tasks.digits.data import load_digits, read_idx
from bayesrnn.tasks.language.data import ptb as ptb_module
from bayesrnn.tasks.language.data import wikitext as wikitext_module
from bayesrnn.tasks.language.data.corpus import Corpus, load_corpus
from bayesrnn.tasks.language.data.sources import find_source
from bayesrnn.tasks.language.data.text import text_files
from bayesrnn.tasks.language.data.wikitext import wikitext2


def load(data: object, size: int | None = None) -> Corpus:
    return load_corpus(find_source(str(data), cache_folder()), size, cache_folder())


def tokens_of(corpus: Corpus) -> str:
    digest = hashlib.sha256(corpus.vocabulary.text().encode())
    for split in (corpus.train, corpus.valid, corpus.test):
        digest.update(split.numpy().tobytes())
    return digest.hexdigest()


def fails(call: Callable[[], object], *parts: str) -> str:
    """The message of a ValueError with these parts, which must be one printable line."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        call()
    message = str(raised.value)
    assert type(raised.value) is ValueError, repr(raised.value)
    assert message.isprintable(), repr(message)
    for part in parts:
        assert part in message
    return message


def refused(call: Callable[[], Any], part: str) -> Any:
    """What a call returns; None if it raises ValueError, with this part and in one line."""
    message = part
    try:
        return call()
    except ValueError as error:
        message = str(error)
    assert part in message
    assert "\n" not in message
    return None


@pytest.fixture
def text(tmp_path):
    """A folder of text whose words follow no pattern."""
    random, folder = Random(1), tmp_path / "text"
    folder.mkdir()
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        words = (f"w{random.randrange(50)}" for _ in range(8 * lines))
        (folder / f"{split}.txt").write_text(
            "".join(" ".join(line) + "\n" for line in zip(*[words] * 8, strict=True))
        )
    return folder


# ---------------------------------------------------------------------- the cache of tokens


def _zeros(data: bytes) -> bytes:
    return bytes(len(data))


def _half(data: bytes) -> bytes:
    return data[: len(data) // 8 * 4]


def _torn(data: bytes) -> bytes:
    return data[:-3]


def _longer(data: bytes) -> bytes:
    return data + data[:400]


def _out_of_range(data: bytes) -> bytes:
    return data[:40] + struct.pack("i", 1_000_000) + data[44:]


def _one_bit(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def _nothing(data: bytes) -> bytes:
    return b""


DAMAGE = [_zeros, _half, _torn, _longer, _out_of_range, _one_bit, _nothing]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["train", "valid", "test", "vocabulary"])
def test_a_damaged_cache_is_made_again(text, capsys, kind, damage):
    before = tokens_of(load(text))
    (path,) = (p for p in cache_folder().glob(f"text-{kind}-*") if p.suffix != ".json")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    os.utime(path, ns=(1, 1))
    assert tokens_of(load(text)) == before
    assert path.read_bytes() == whole
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert path.name in said
    load(text)
    assert capsys.readouterr().err == ""  # once


def test_damage_that_keeps_the_size_and_the_time_of_a_file(text, capsys):
    before = tokens_of(load(text))
    (path,) = cache_folder().glob("text-train-*.tokens")
    facts = path.stat()
    path.write_bytes(_zeros(path.read_bytes()))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert tokens_of(load(text)) == before
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage", [_zeros, _half, _nothing, lambda data: b"[" * 100_000], ids=map(str, count())
)
def test_damaged_records_are_not_trusted(text, damage):
    before = tokens_of(load(text))
    (path,) = cache_folder().glob("text-train-*.tokens")
    records = [p for p in cache_folder().rglob("*.json") if p.is_file()]
    assert records
    for record in records:
        record.write_bytes(damage(record.read_bytes()))
    path.write_bytes(_zeros(path.read_bytes()))
    assert tokens_of(load(text)) == before


def test_every_byte_of_a_record_counts(text, capsys):
    before = tokens_of(load(text))
    (path,) = cache_folder().glob("text-train-*.tokens")
    record = path.with_name(f"{path.name}.json")
    whole, random = record.read_bytes(), Random(0)
    for _ in range(30):
        place = random.randrange(len(whole))
        changed = bytes([whole[place] ^ (1 << random.randrange(7))])
        record.write_bytes(whole[:place] + changed + whole[place + 1 :])
        assert tokens_of(load(text)) == before
    assert "Traceback" not in capsys.readouterr().err


def test_a_cache_without_records_is_made_again(text):
    before = tokens_of(load(text))
    (path,) = cache_folder().glob("text-train-*.tokens")
    for record in cache_folder().rglob("*.json"):
        record.unlink()
    path.write_bytes(_half(path.read_bytes()))
    assert tokens_of(load(text)) == before


def test_nothing_is_read_twice_while_nothing_is_touched(text, monkeypatch):
    from bayesrnn.data import verified

    read: list[Path] = []
    real = verified.sha256_of
    monkeypatch.setattr(verified, "SETTLED", -1.0)
    monkeypatch.setattr(
        verified, "sha256_of", lambda path, *tell: (read.append(Path(path)), real(path, *tell))[1]
    )
    load(text)
    assert sorted(read) == sorted(text.iterdir())  # the text, once
    read.clear()
    load(text)
    assert read == []
    (path,) = cache_folder().glob("text-train-*.tokens")
    os.utime(path)
    load(text)
    load(text)
    assert read == [path]


def test_a_copied_cache_is_verified_and_used(text, tmp_path, monkeypatch, capsys):
    before = tokens_of(load(text))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(cache_folder()), str(copy)], check=True)
    monkeypatch.setenv("BAYESRNN_CACHE", str(copy))
    times = {path: path.stat().st_mtime_ns for path in copy.glob("*.tokens")}
    assert tokens_of(load(text)) == before
    assert times == {path: path.stat().st_mtime_ns for path in copy.glob("*.tokens")}
    assert capsys.readouterr().err == ""


def test_text_changed_behind_its_size_and_time(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("old words here\n" * 40)
    facts = path.stat()
    old = load(path)
    path.write_text("new words here\n" * 40)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert path.stat().st_size == facts.st_size
    assert "new" in load(path).vocabulary.index
    assert "old" in old.vocabulary.index


def test_text_that_changes_while_it_is_read(tmp_path, monkeypatch):
    from bayesrnn.tasks.language.data.text import TextFiles

    path = tmp_path / "book.txt"
    path.write_text("old words here\n" * 40)
    batches = TextFiles.batches

    def changing(self: TextFiles, split: str, place: list[int]):
        path.write_text("new words here\n" * 41)
        return batches(self, split, place)

    monkeypatch.setattr(TextFiles, "batches", changing)
    fails(lambda: load(path), "book", "changed while it was read")
    assert not list(cache_folder().glob("*.tokens"))


def test_the_digest_of_a_text_is_of_its_bytes(text, tmp_path):
    from bayesrnn.tasks.language.data.corpus import corpus_digest

    digest = corpus_digest(text_files(text), cache_folder())
    assert digest == text_files(text).digest() == load(text).digest
    moved = text.rename(tmp_path / "moved")
    assert corpus_digest(text_files(moved), cache_folder()) == digest
    path = moved / "test.txt"
    path.write_bytes(path.read_bytes().replace(b"w1", b"w2", 1))
    assert corpus_digest(text_files(moved), cache_folder()) != digest


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"first word\n" * 40)
    words = load(path).vocabulary.words
    assert set(words) == {"first", "word", END, UNKNOWN}


def test_control_characters_in_words_survive(tmp_path):
    path = tmp_path / "book.txt"
    odd = "a\x1b[31m", "\x00", "\x7f", "b\x07", "\u202e", "\ufeff"
    path.write_text((" ".join(odd) + "\n") * 40, encoding="utf-8")
    assert set(load(path).vocabulary.words) == {*odd, END, UNKNOWN}
    assert set(load(path).vocabulary.words) == {*odd, END, UNKNOWN}


def test_two_processes_make_the_same_cache(text):
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from bayesrnn.tasks.language.data.sources import find_source\n"
        "from bayesrnn.tasks.language.data.corpus import load_corpus\n"
        "cache = Path(sys.argv[2])\n"
        "corpus = load_corpus(find_source(sys.argv[1], cache), None, cache)\n"
        "print(int(corpus.train.sum()), int(corpus.valid.sum()), int(corpus.test.sum()))"
    )
    command = [sys.executable, "-c", program, str(text), str(cache_folder())]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said[0][0] == said[1][0] != b""
    corpus = load(text)
    sums = " ".join(str(int(s.sum())) for s in (corpus.train, corpus.valid, corpus.test))
    assert said[0][0].decode().strip() == sums
    assert not list(cache_folder().rglob(f"{PREFIX}*"))


def test_what_killed_processes_left_is_removed(text):
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    left, used = (cache / f"{PREFIX}{name}{SUFFIX}" for name in ("left", "used"))
    earlier = cache / ".text-train-0123456789abcdef.tokens.123"
    notes = cache / ".notes"
    for folder in (left, used):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    for path in (earlier, notes):
        path.write_bytes(b"x")
        os.utime(path, (1e9, 1e9))
    handle = os.open(used, os.O_RDONLY)  # as a process that is still writing has it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        load(text)
    finally:
        os.close(handle)
    assert {p.name for p in cache.iterdir() if p.name.startswith(".")} == {used.name, notes.name}


def test_a_failed_write_leaves_nothing(text, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        fails(lambda: load(text), "No space left on device", "BAYESRNN_CACHE")
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]
    load(text)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"a\n<unk>\n<eos>\nb", "cut off"),
        (b"a\n<unk>\n<eos>\na\n", "a word twice"),
        (b"a\n<unk>\n<eos>\n\xff\n", "not UTF-8"),
        (b"", "lacks"),
        (b"\0" * 100, "lacks"),
    ],
    ids=map(str, count()),
)
def test_files_that_are_no_vocabulary(tmp_path, content, part):
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content)
    fails(lambda: Vocabulary.read(path), str(path), part)


def test_a_vocabulary_file_keeps_every_word(tmp_path):
    words = (UNKNOWN, END, "a\rb", "\x85", "\x1c", "\u2028", "\x0c", "\x00", "é")
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(Vocabulary(words).text().encode())
    assert Vocabulary.read(path).words == words


@pytest.mark.parametrize(
    "data", ["~nosuchuser/x", "a" * 5000, "a\0b", "\x1b[31m"], ids=map(str, count())
)
def test_names_of_data_that_cannot_be(data):
    fails(lambda: load(data), "no such file or folder")
    fails(lambda: load_digits(data), "no such folder")


def test_tokens_of_pydocs_are_those_of_the_earlier_version():
    """The digest of the tokens was made by version 9379884, from the text with this digest."""
    from bayesrnn.tasks.language.data.pydocs import PyDocs

    source = PyDocs()
    corpus = load_corpus(source, 5000, cache_folder())
    vocabulary = Vocabulary.build(source.lines("train"), 5000)
    assert corpus.vocabulary.words == vocabulary.words
    for split, tokens in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test)):
        lines = [[*vocabulary.encode(line), vocabulary.end] for line in source.lines(split)]
        assert tokens.tolist() == [vocabulary.end, *(token for line in lines for token in line)]
    if source.digest() == "0bec777a9409fd4a13662f44528cadec84287d31203924fc9d4d7f2b3f8ee4f5":
        assert (
            tokens_of(corpus) == "75f1aaa22b5f1098540479cdcf243841f89af852959ea593f72b765dc8e6b0c3"
        )


def test_tokens_of_ptb_are_those_of_the_earlier_version(ptb):
    assert (
        tokens_of(load(ptb)) == "452510866be0fef6b58fecfa7e7f87a8cdab0ffa5cd668141b285c97c0ecd6ba"
    )


# ---------------------------------------------------------------------- downloads


Answer = Callable[[socket.socket], None]


class Hostile:
    """A server on this machine that answers each path in its own way, however wrong."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def says(self, path: str, answer: bytes | Answer) -> str:
        """Have a path answered with these bytes, or by a function; returns its address."""
        if isinstance(answer, bytes):
            self.answers[path] = lambda connection: connection.sendall(answer)
        else:
            self.answers[path] = answer
        return f"{self.address}{path}"

    def has(self, path: str, content: bytes) -> str:
        return self.says(
            path, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError, IndexError), connection:
            path = connection.recv(65536).split()[1].decode("latin-1")
            self.requests.append(path)
            if path in self.answers:
                self.answers[path](connection)


@pytest.fixture
def server():
    hostile = Hostile()
    yield hostile
    hostile.close()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "Not Found"),
        (b"HTTP/1.1 500 \x1b[31mred\r\n\r\n", "red"),
        (b"HTTP/1.1 500\r\n\r\n", "cannot download"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", "IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc", "IncompleteRead"),
        (OK + b"Content-Length: many\r\n\r\nabc", "invalid Content-Length"),
        (OK + b"Content-Length: -5\r\n\r\nabc", "invalid Content-Length"),
        (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "invalid Content-Length"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc", "invalid Content-Length"),
        (OK + b"Content-Length: 1000\r\n\r\nabc", "ended after 3 of 1,000 bytes"),
        (OK + b"Content-Length: 1000000000000\r\n\r\nabc", "larger than"),
        (OK + b"Content-Length: 3\r\n\r\nabc", "wrong checksum"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "file:///etc/passwd"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n", "not on the web"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", "infinite loop"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[bad/\r\n\r\n", "cannot download"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "cannot download"),
        (b"\x00\x01\x02 garbage\r\n\r\n", "cannot download"),
        (b"HTTP/1.1 999999 x\r\n\r\n", "cannot download"),
        (OK + b"X: y\r\n" * 5000, "headers"),
        (OK + b"X: " + b"y" * 100_000, "cannot download"),
        (b"", "cannot download"),
    ],
    ids=map(str, count()),
)
def test_a_server_that_answers_wrongly(server, tmp_path, answer, part):
    url = server.says("/x", answer)
    path = tmp_path / "folder" / "x"
    fails(lambda: download(url, path, sha256="0" * 64), "127.0.0.1", part)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "http://[::1",
        "http://127.0.0.1:999999/x",
        "http://127.0.0.1:port/x",
        "http:///x",
        "http://a b/x",
        "http://127.0.0.1/\x1b[31m",
        "http://127.0.0.1:1/x",
        "http://é" + "x" * 100 + "/",
        "gopher://127.0.0.1/x",
        "",
    ],
    ids=map(str, count()),
)
def test_addresses_that_are_none(tmp_path, url):
    fails(lambda: download(url, tmp_path / "x", sha256="0" * 64), "cannot download", "--data")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_speak_tls(server, tmp_path):
    url = server.says("/x", b"plain text").replace("http:", "https:")
    message = fails(lambda: download(url, tmp_path / "x"), "cannot download")
    assert "SSL" in message


def test_a_server_whose_certificate_nobody_signed(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise ssl.SSLCertVerificationError(1, "certificate verify failed")

    monkeypatch.setattr(socket, "create_connection", refuse)
    fails(lambda: download("https://127.0.0.1/x", tmp_path / "x"), "certificate verify failed")


def trickle(connection: socket.socket, *, head: bytes = OK + b"\r\n", seconds: float = 8.0) -> None:
    connection.sendall(head)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize(
    "head",
    [
        OK + b"\r\n",
        OK + b"Content-Length: 100000\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n",
        OK + b"X: ",
        b"HTTP/1.1 ",
        b"",
    ],
    ids=map(str, count()),
)
def test_a_server_that_trickles(server, tmp_path, monkeypatch, head):
    monkeypatch.setattr(download_module, "PATIENCE", 0.5, raising=False)
    url = server.says("/x", lambda connection: trickle(connection, head=head))
    begin = time.monotonic()
    fails(lambda: download(url, tmp_path / "x"), "too slow")
    assert time.monotonic() - begin < 5
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_says_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "PATIENCE", 0.5, raising=False)
    url = server.says("/x", lambda connection: time.sleep(8))
    begin = time.monotonic()
    fails(lambda: download(url, tmp_path / "x"), "cannot download")
    assert time.monotonic() - begin < 5


def test_a_server_that_never_ends(server, tmp_path):
    def endless(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\n")
        for _ in range(300):  # not quite
            connection.sendall(bytes(1_000_000))

    url = server.says("/x", endless)
    fails(lambda: download(url, tmp_path / "x"), "larger than 100,000,000 bytes")
    assert list(tmp_path.iterdir()) == []


def test_what_comes_after_the_announced_length_is_cut_off(server, tmp_path):
    url = server.says("/x", OK + b"Content-Length: 3\r\n\r\nabcdef")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert download(url, tmp_path / "x", sha256=sha256).read_bytes() == b"abc"


def test_a_right_download_by_chunks_and_redirections(server, tmp_path):
    server.says("/y", OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    url = server.says("/x", b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n")
    sha256 = hashlib.sha256(b"abcde").hexdigest()
    assert download(url, tmp_path / "x", sha256=sha256).read_bytes() == b"abcde"


def test_downloads_are_verified_on_every_use(server, monkeypatch, capsys):
    sums = {}
    for split in ("train", "valid", "test"):
        content = f"the {split} text\n".encode() * 5
        server.has(f"/ptb.{split}.txt", content)
        sums[f"ptb.{split}.txt"] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(ptb_module, "SHA256", sums)
    monkeypatch.setenv("BAYESRNN_PTB_URL", server.address)
    before = tokens_of(load("ptb"))
    asked = len(server.requests)
    assert asked == 3
    load("ptb")
    assert len(server.requests) == asked
    (cache_folder() / "ptb" / "ptb.valid.txt").write_bytes(b"something else\n")
    assert tokens_of(load("ptb")) == before
    assert server.requests[asked:] == ["/ptb.valid.txt"]
    assert "ptb.valid.txt is damaged" in capsys.readouterr().err
    (cache_folder() / "ptb" / "ptb.other-train.txt").write_bytes(b"not of the corpus\n")
    assert tokens_of(load("ptb")) == before


def archive(path: Path, size: int = 0, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with zipfile.ZipFile(path, "w", method) as file:
        for split in ("train", "valid", "test"):
            content = f" \n = {split} = \n words here \n".encode() + bytes(size)
            file.writestr(f"wikitext-2/wiki.{split}.tokens", content)
    return path.read_bytes()


def wikitext(server: Hostile, monkeypatch: pytest.MonkeyPatch, content: bytes):
    monkeypatch.setenv("BAYESRNN_WIKITEXT2_URL", server.has("/w.zip", content))
    return wikitext2(cache_folder(), md5=hashlib.md5(content).hexdigest())


def test_bad_archives(server, monkeypatch, tmp_path):
    good = archive(tmp_path / "w.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    encrypted = bytearray(good)
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        encrypted[good.index(mark) + (6 if mark[2] == 3 else 8)] |= 1
    contents = [
        b"not a zip",
        b"",
        good[:-30],
        good[:60] + b"????????" + good[68:],
        (tmp_path / "empty.zip").read_bytes(),
        bytes(encrypted),
        archive(tmp_path / "bz.zip", 1000, zipfile.ZIP_BZIP2),
    ]
    for content in contents:
        fails(
            lambda content=content: wikitext(server, monkeypatch, content),
            "wikitext-2-v1.zip",
            "removed",
        )
        assert not (cache_folder() / "wikitext-2-v1.zip").exists()
    assert next(iter(wikitext(server, monkeypatch, good).lines("valid"))) == []
    assert not list(cache_folder().rglob(f"{PREFIX}*"))


def test_damaged_archives_seeded(server, monkeypatch, tmp_path):
    good, random = archive(tmp_path / "w.zip", 300), Random(0)
    for _ in range(40):
        content = bytearray(good)
        for _ in range(random.randint(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        with suppress(ValueError):  # nothing else
            wikitext(server, monkeypatch, bytes(content))


def test_a_zip_bomb(server, monkeypatch, tmp_path):
    content = archive(tmp_path / "w.zip", 100_000_000)
    assert len(content) < 1_000_000
    tracemalloc.start()
    fails(lambda: wikitext(server, monkeypatch, content), "wikitext-2-v1.zip", "larger inside")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000
    kept = sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())
    assert kept < 1_000_000


@pytest.mark.parametrize("damage", DAMAGE)
def test_unpacked_files_are_verified_on_every_use(server, monkeypatch, tmp_path, capsys, damage):
    content = archive(tmp_path / "w.zip", 100)
    before = text_of(wikitext(server, monkeypatch, content))
    path = cache_folder() / "wikitext-2" / "wiki.train.tokens"
    path.write_bytes(damage(path.read_bytes()))
    assert text_of(wikitext(server, monkeypatch, content)) == before
    assert "wiki.train.tokens is damaged" in capsys.readouterr().err


def text_of(source) -> list[list[list[str]]]:
    return [list(source.lines(split)) for split in ("train", "valid", "test")]


def test_files_unpacked_by_an_earlier_version(server, monkeypatch, tmp_path, capsys):
    content = archive(tmp_path / "w.zip")
    source = wikitext(server, monkeypatch, content)
    counts = {s: sum(len(line) + 1 for line in source.lines(s)) for s in ("train", "valid", "test")}
    before = text_of(source)

    def forget() -> Path:
        for path in cache_folder().rglob("*.json"):
            path.unlink()
        (cache_folder() / "wikitext-2-v1.zip").unlink(missing_ok=True)
        return cache_folder() / "wikitext-2" / "wiki.train.tokens"

    forget()
    with monkeypatch.context() as patch:
        patch.setattr(wikitext_module, "WORDS", counts)
        asked = len(server.requests)
        assert text_of(wikitext(server, monkeypatch, content)) == before
        assert len(server.requests) == asked  # right by its counts: no download
        path = forget()
        path.write_bytes(path.read_bytes()[:10])
        assert text_of(wikitext(server, monkeypatch, content)) == before
        assert len(server.requests) == asked + 1


# ---------------------------------------------------------------------- digits


def idx(shape: tuple[int, ...], data: bytes, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (idx((2**32 - 1,) * 3, bytes(100)), "damaged"),
        (idx((2**31, 2**31, 4), b""), "damaged"),  # the product overflows to 0
        (idx((0, 2**32 - 1, 2**32 - 1), b""), "no images"),
        (idx((1,) * 255, b"x"), "no images"),
        (idx((), b"x"), "no images"),
        (idx((2, 3), bytes(5)), "5 bytes of data, but its header says 6"),
        (idx((2, 3), bytes(7)), "damaged"),
        (idx((2, 3), bytes(6), b"\0\0\x0d"), "not an IDX file"),
        (idx((2, 3), bytes(6), b"\1\0\x08"), "not an IDX file"),
        (idx((2, 3), bytes(6))[:9], "within its header"),
        (b"\x1f\x8b", "cannot read"),
        (b"\x1f\x8b" + bytes(100), "cannot read"),
        (gzip.compress(idx((2, 3), bytes(6)), mtime=0)[:-9], "cannot read"),
        (gzip.compress(idx((2, 3), bytes(6)), mtime=0)[:-1] + b"\xff", "cannot read"),
        (gzip.compress(idx((2**32 - 1,) * 3, bytes(100)), mtime=0), "damaged"),
        (b"", "not an IDX file"),
    ],
    ids=map(str, count()),
)
def test_idx_files_that_are_wrong(tmp_path, content, part):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    fails(lambda: read_idx(path), str(path), part)


@pytest.mark.parametrize("length", [300_000_000, 10])
def test_a_gzipped_idx_bomb(tmp_path, length):
    """It says how large it is, or it does not."""
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    with gzip.GzipFile(path, "wb", 6) as file:
        file.write(idx((length,), b""))
        for _ in range(300):
            file.write(bytes(1_000_000))
    tracemalloc.start()
    fails(lambda: read_idx(path), str(path), "damaged")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000


def test_idx_files_damaged_anywhere(tmp_path):
    random = Random(0)
    good = idx((5, 4, 4), random.randbytes(80))
    path = tmp_path / "train-images-idx3-ubyte"
    for number in range(300):
        content = bytearray(gzip.compress(good, mtime=0) if number % 2 else good)
        for _ in range(random.randint(1, 3)):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content[: random.randrange(len(content))] if number % 3 == 0 else content)
        found = refused(lambda: read_idx(path), str(path))
        assert found is None or found.size == 80


def test_images_of_two_sizes(tmp_path):
    for name, side in (("train", 4), ("t10k", 5)):
        pictures = idx((12, side, side), bytes(12 * side * side))
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(pictures)
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx((12,), bytes(12)))
    fails(lambda: load_digits(str(tmp_path)), "4 x 4", "5 x 5")


# ---------------------------------------------------------------------- captions


@pytest.fixture
def captions(tmp_path):
    """A writer of captions_test.json, which then loads it."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"a")

    def load_it(content: bytes | object):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / "captions_test.json").write_bytes(raw)
        return load_coco(tmp_path, ("test",))

    return load_it


def said(*captions: object, name: object = "a.jpg", number: object = 1) -> dict[str, object]:
    return {
        "images": [{"id": number, "file_name": name}],
        "annotations": [{"image_id": number, "caption": caption} for caption in captions],
    }


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 1_000_000,
        b'{"images":' * 200_000,
        b'{"images": [{"id": ' + b"9" * 5000 + b', "file_name": "a.jpg"}], "annotations": []}',
        b'{"images": [{"id": NaN, "file_name": "a.jpg"}], "annotations": []}',
        b"\xff\xfe{}",
        b"\0" * 1000,
        b"null",
        b"",
        {"images": {}, "annotations": []},
        {"images": [[]], "annotations": []},
        {"images": [], "annotations": [None]},
        said(7),
        said("a dog", name=["a.jpg"]),
        said("a dog", name={"a": 1}),
        said("a dog", number=1.5),
        said("a dog", number=[1]),
        said("a dog", name="x" * 5000),
        said("a dog", name="a\0b"),
        said("a dog", name="\ud800"),
        said("a dog", name="../\x1b[31m\n" + "x" * 5000),
        said("a dog", name=""),
        said("a" * 1_000_000),
    ],
    ids=map(str, count()),
)
def test_captions_that_are_wrong(captions, content):
    message = fails(lambda: captions(content), "captions_test.json")
    assert len(message) < 700


def test_two_images_with_an_id_that_commands_the_terminal(captions):
    number = "\x1b[31m" + "x" * 5000
    content = said("a dog", number=number)
    content["images"] = [{"id": number, "file_name": name} for name in ("a.jpg", "b.jpg")]
    assert len(fails(lambda: captions(content), "two images have the id")) < 700


def test_what_is_left_out_is_printable(captions):
    content = said("a dog", "word" * 1_000_000)
    content["images"] = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "\x1b[31m\n.jpg"}]
    found = captions(content)
    assert [entry.captions for entry in found.splits["test"]] == [("a dog",)]
    assert len(found.skipped) == 2
    assert all(line.isprintable() for line in found.skipped)


def test_a_file_of_captions_that_is_too_large(captions, monkeypatch):
    monkeypatch.setattr(coco_module, "MOST_BYTES", 100, raising=False)
    fails(lambda: captions(said("a dog " * 50)), "captions_test.json", "more than 100 bytes")


def test_image_files_that_are_wrong(tmp_path):
    fails(lambda: read_file(tmp_path / ("x" * 5000)))
    random = Random(0)
    from io import BytesIO

    from PIL import Image

    for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"):
        out = BytesIO()
        Image.new("RGB", (9, 9), "red").save(out, kind)
        for _ in range(30):
            content = bytearray(out.getvalue())
            for _ in range(random.randint(1, 5)):
                content[random.randrange(len(content))] = random.randrange(256)
            with suppress(ValueError):  # nothing else
                decode(bytes(content))


HEADER = {
    "format": features_module.FORMAT,
    "encoder": "mine",
    "key": "mine-1",
    "images": ["a", "b"],
    "digests": ["", ""],
}


@pytest.mark.parametrize(
    ("changes", "rows", "part"),
    [
        ({"encoder": None}, torch.zeros(2, 3), "which encoder"),
        ({"key": ["mine"]}, torch.zeros(2, 3), "which encoder"),
        ({"images": None}, torch.zeros(2, 3), "do not match"),
        ({"images": ["a", 7]}, torch.zeros(2, 3), "do not match"),
        ({"images": ["a", "a"]}, torch.zeros(2, 3), "do not match"),
        ({"digests": [[]]}, torch.zeros(2, 3), "do not match"),
        ({}, torch.zeros(2, 3, dtype=torch.int64), "not a file of image features"),
        ({}, torch.zeros(2, 3, dtype=torch.complex64), "not a file of image features"),
        ({}, torch.zeros(2, 0), "not a file of image features"),
        ({}, torch.zeros(2), "not a file of image features"),
        ({"images": [], "digests": []}, torch.zeros(0, 10**12), "not a file of image features"),
        ({}, torch.full((2, 3), float("nan")), "no finite number"),
        ({}, torch.full((2, 3), float("inf")), "no finite number"),
    ],
    ids=map(str, count()),
)
def test_features_that_are_wrong(tmp_path, changes, rows, part):
    path = tmp_path / "f.safetensors"
    save_tensors(path, {"features": rows}, HEADER | changes)
    fails(lambda: load_features(path), str(path), part)


def test_feature_files_damaged_anywhere(tmp_path):
    path = tmp_path / "f.safetensors"
    save_tensors(path, {"features": torch.zeros(2, 3)}, HEADER)
    good, random = path.read_bytes(), Random(0)
    for _ in range(200):
        content = bytearray(good)
        for _ in range(random.randint(1, 3)):
            content[random.randrange(len(content))] = random.randrange(256)
        if bytes(content) == good:
            continue
        path.write_bytes(content)
        refused(lambda: load_features(path), str(path))


def test_a_key_that_commands_the_terminal(tmp_path):
    path = tmp_path / "f.safetensors"
    save_tensors(path, {"features": torch.zeros(2, 3)}, HEADER | {"key": "\x1b[31m\nred"})
    loaded = load_features(path)
    fails(lambda: features_module.check_key(loaded, "mine-1", path), str(path), "red")


def test_arrays_of_numpy_are_ours(tmp_path):
    """What read_idx returns can be written to: it is no view of the file."""
    path = tmp_path / "labels"
    path.write_bytes(idx((3,), b"abc"))
    found = read_idx(path)
    found[0] = 0
    assert np.array_equal(read_idx(path), np.frombuffer(b"abc", np.uint8))
