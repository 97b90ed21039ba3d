"""Texts that take long to tokenise and do not fit into memory."""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Thread

import numpy as np
import pytest
import torch

from bayesrnn import Cuts
from bayesrnn.data import mapped, progress, resumable, verified
from bayesrnn.data.download import cache_folder
from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.data import batches as batches_module
from bayesrnn.tasks.language.data import corpus as corpus_module
from bayesrnn.tasks.language.data import text as text_module
from bayesrnn.tasks.language.data.beginning import Beginning
from bayesrnn.tasks.language.data.corpus import SPLITS, Source, load_corpus
from bayesrnn.tasks.language.data.text import TextFiles, text_files
from bayesrnn.tasks.language.evaluation.scoring import segments
from bayesrnn.tasks.language.trained import TrainedModel


class Killed(BaseException):
    """No exception that anything would handle."""


@dataclass(frozen=True)
class Unseekable:
    """A source with no more than the protocol asks for."""

    source: Source

    @property
    def name(self) -> str:
        return self.source.name

    def lines(self, split: str) -> Iterator[list[str]]:
        return self.source.lines(split)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def digest(self, memory: Path | None = None) -> str:
        return self.source.digest(memory)


def _write(path: Path, lines: int, seed: int, *, bom: bool = False) -> Path:
    """Lines of random words; some are empty, some hold an `<eos>`, and the last has no end."""
    random = Random(seed)
    text = []
    for _ in range(lines):
        words = [f"wörd{random.randrange(60)}" for _ in range(random.randrange(12))]
        if random.random() < 0.05:
            words.append(END)
        text.append(random.choice([" ", "\t"]).join(words) + random.choice(["\n", "\n", "\r\n"]))
    path.write_bytes(codecs.BOM_UTF8 * bom + "".join([*text, "the end"]).encode())
    return path


def _sources(folder: Path) -> dict[str, Source]:
    folder.mkdir(exist_ok=True)
    apart = {
        split: (_write(folder / f"{split}.txt", 120, i, bom=i == 1),)
        for i, split in enumerate(SPLITS)
    }
    shared = tuple(_write(folder / f"{i}.txt", 90, 10 + i, bom=i > 0) for i in range(3))
    (folder / "empty.txt").write_bytes(b"")
    shared = (shared[0], folder / "empty.txt", *shared[1:])
    sources: dict[str, Source] = {
        "files": TextFiles("t", apart, shared=False),
        "shared": TextFiles("t", dict.fromkeys(SPLITS, shared), shared=True),
        "blank": TextFiles("t", apart, shared=False, keep_blank=True),
        "shared, blank": TextFiles(
            "t", dict.fromkeys(SPLITS, shared), shared=True, keep_blank=True
        ),
    }
    sources["beginning"] = Beginning(sources["shared"], 700)
    sources["unseekable"] = Unseekable(sources["files"])
    return sources


def _contents(cache: Path) -> dict[str, bytes]:
    """The files of a cache, without their records."""
    found = [path for path in cache.iterdir() if path.suffix in {".tokens", ".txt"}]
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(text_module, "BATCH_BYTES", 200)
    monkeypatch.setattr(batches_module, "BATCH_LINES", 7)


@pytest.fixture
def many_points(small_batches, monkeypatch):
    """A point is saved after each batch."""
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_POINTS", -1.0)
    monkeypatch.setattr(resumable, "POINT_COST", 0.0)


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(
    "name", ["files", "shared", "blank", "shared, blank", "beginning", "unseekable"]
)
def test_batches_are_the_lines_from_any_place(tmp_path, name, small_batches):
    source = _sources(tmp_path / "text")[name]
    for split in SPLITS:
        whole = list(batches_module.batches(source, split, []))
        lines = [line for batch in whole for line in batch.lines]
        assert lines == list(source.lines(split))
        assert len(whole) > 3
        for number, batch in enumerate(whole):
            rest = batches_module.batches(source, split, batch.place)
            found = [line for part in rest for line in part.lines]
            assert found == [line for part in whole[number + 1 :] for line in part.lines]
        shares = [batch.share for batch in whole]
        assert shares == [None] * len(whole) or shares == sorted(shares)
        assert shares[-1] in (None, 1.0)


def test_lines_are_those_of_a_simple_reader(tmp_path, small_batches):
    sources = _sources(tmp_path / "text")
    source = sources["shared, blank"]
    assert isinstance(source, TextFiles)
    lines = [[w for w in line.decode().split() if w != END] for line in _ended(source)]
    assert list(source.lines("valid")) == lines[18::20]
    assert list(source.lines("test")) == lines[19::20]
    assert list(source.lines("train")) == [x for i, x in enumerate(lines) if i % 20 < 18]


def _ended(source: TextFiles) -> list[bytes]:
    found = []
    for path in source.files["train"]:
        *lines, last = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
        found += [*lines, last] if last else lines
    return found


@pytest.mark.parametrize("name", ["files", "shared", "blank", "beginning", "unseekable"])
@pytest.mark.parametrize("seed", range(4))
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path, monkeypatch, many_points, name, seed
):
    source, random = _sources(tmp_path / "text")[name], Random(f"{name} {seed}")
    load_corpus(source, 50, tmp_path / "whole")
    whole = _contents(tmp_path / "whole")
    assert len(whole) == 4

    begun = []
    real, at_point = corpus_module.batches, resumable.Partial.at_point

    def stopping(source, split, place):
        begun.append((split, place))
        left = random.randrange(15)
        for batch in real(source, split, place):
            if left == 0:
                raise Killed
            left -= 1
            yield batch

    def now_and_then(self, values):
        if random.random() < 0.3:
            at_point(self, values)

    monkeypatch.setattr(corpus_module, "batches", stopping)
    monkeypatch.setattr(resumable.Partial, "at_point", now_and_then)
    for _ in range(500):
        try:
            load_corpus(source, 50, tmp_path / "parts")
            break
        except Killed:
            continue
    else:
        pytest.fail("it never came to an end")
    assert _contents(tmp_path / "parts") == whole
    names = [{p.name for p in (tmp_path / f).glob("*-*")} for f in ("parts", "whole")]
    assert names[0] == names[1]  # and nothing is left over
    assert any(place for _, place in begun)  # it did go on from somewhere


def _stopped(source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The partial file of the training split, stopped in the middle."""
    real = corpus_module.batches

    def stopping(source, split, place):
        for number, batch in enumerate(real(source, split, place)):
            if file_is_tokens and number == 6:
                raise Killed
            yield batch

    file_is_tokens = False
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "batches", stopping)
        corpus_module._load_vocabulary(corpus_module._Text.of(source, cache), 50)
        file_is_tokens = True
        with pytest.raises(Killed):
            load_corpus(source, 50, cache)
    (partial,) = cache.glob("*.tokens.partial")
    assert verified.beside(partial).exists()
    return partial


@pytest.mark.parametrize("what", ["bit", "record", "cut", "gone", "no record", "longer", "zeros"])
def test_a_damaged_point_is_not_used(tmp_path, monkeypatch, many_points, what):
    source = _sources(tmp_path / "text")["files"]
    load_corpus(source, 50, tmp_path / "whole")
    partial = _stopped(source, tmp_path / "parts", monkeypatch)
    record, data = verified.beside(partial), bytearray(partial.read_bytes())
    if what == "bit":
        data[40] ^= 1
        partial.write_bytes(data)
    elif what == "record":
        record.write_bytes(record.read_bytes().replace(b'"words": ', b'"words": 1'))
    elif what == "cut":
        partial.write_bytes(data[:-4])
    elif what == "gone":
        partial.unlink()
    elif what == "no record":
        record.unlink()
    elif what == "longer":
        partial.write_bytes(data + b"more" * 100)  # after the point: cut off
    else:
        partial.write_bytes(bytes(len(data)))
    begun = []
    real = corpus_module.batches
    monkeypatch.setattr(
        corpus_module, "batches", lambda *a: (begun.append(bool(a[2])), real(*a))[1]
    )
    load_corpus(source, 50, tmp_path / "parts")
    assert begun == [what == "longer", False, False]
    assert _contents(tmp_path / "parts") == _contents(tmp_path / "whole")
    assert not list((tmp_path / "parts").glob("*.partial*"))


def test_a_point_of_another_version_is_not_used(tmp_path, monkeypatch, many_points):
    source = _sources(tmp_path / "text")["files"]
    load_corpus(source, 50, tmp_path / "whole")
    _stopped(source, tmp_path / "parts", monkeypatch)
    monkeypatch.setattr(corpus_module, "_POINTS", 999)
    load_corpus(source, 50, tmp_path / "parts")
    assert _contents(tmp_path / "parts") == _contents(tmp_path / "whole")


def test_no_point_is_saved_of_a_text_that_changed(tmp_path, monkeypatch, many_points):
    source = _sources(tmp_path / "text")["files"]
    real = corpus_module.batches

    def changing(source, split, place):
        for number, batch in enumerate(real(source, split, place)):
            if number == 3:
                with (tmp_path / "text" / "train.txt").open("a") as file:
                    file.write(" more")
            yield batch

    monkeypatch.setattr(corpus_module, "batches", changing)
    with pytest.raises(ValueError, match="changed while it was read"):
        load_corpus(source, 50, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").glob("*") if path.is_file()]


def test_what_nobody_went_on_with_is_removed(tmp_path, monkeypatch, many_points):
    source = _sources(tmp_path / "text")["files"]
    cache = tmp_path / "cache"
    partial = _stopped(source, cache, monkeypatch)
    record = verified.beside(partial)
    verified.tidy.cache_clear()
    verified.tidy(cache)
    assert partial.exists()
    old = time.time() - verified.FORGOTTEN - 10
    for path in (partial, record):
        os.utime(path, (old, old))
    verified.tidy.cache_clear()
    verified.tidy(cache)
    assert not partial.exists()
    assert not record.exists()
    assert list(cache.glob("*.txt"))


# ---------------------------------------------------------------------- processes

PROGRAM = """
import sys, time
from pathlib import Path
from bayesrnn.data import resumable
from bayesrnn.tasks.language.data import corpus, text
from bayesrnn.tasks.language.data.text import text_files
text.BATCH_BYTES, resumable.SECONDS_BETWEEN_POINTS, resumable.POINT_COST = 1500, -1.0, 0.0
real = corpus.batches
slow = sys.argv[3] == "slow"
def batches(source, split, place):
    print("begin", split, bool(place), flush=True)
    for number, batch in enumerate(real(source, split, place)):
        if slow and split == "train" and len(list(Path(sys.argv[2]).glob("*.txt"))) and number == 20:
            print("stuck", flush=True)
            time.sleep(60)
        yield batch
corpus.batches = batches
corpus.load_corpus(text_files(Path(sys.argv[1])), None, Path(sys.argv[2]))
print("done", flush=True)
"""


def _start(text: Path, cache: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(text), str(cache), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    pytest.fail(f"it ended without {word}: {process.communicate()[1]}")


def test_after_kill_9_another_process_that_waits_goes_on(tmp_path):
    """The maker is killed; of two that wait for it one goes on from its point, the other uses the file."""
    text, cache = _write(tmp_path / "t.txt", 900, 3), tmp_path / "cache"
    load_corpus(text_files(text), None, tmp_path / "whole")
    maker = _start(text, cache, "slow")
    _until(maker, "stuck")
    waiting = [_start(text, cache, "fast") for _ in range(2)]
    for process in waiting:  # each has said so once
        assert process.stderr is not None
        assert "waiting for another process, which is making" in process.stderr.readline()
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=60)
    said = [process.communicate(timeout=100) for process in waiting]
    assert [process.returncode for process in waiting] == [0, 0]
    began = "".join(out for out, _ in said)
    assert began.count("begin train True") == 1
    assert began.count("begin train False") == 0
    assert began.count("begin valid") == began.count("begin test") == 1
    assert _contents(cache) == _contents(tmp_path / "whole")
    assert not list(cache.glob("*.partial*"))


def test_without_locks_every_process_makes_its_own(tmp_path, monkeypatch):
    source = _sources(tmp_path / "text")["files"]
    load_corpus(source, 50, tmp_path / "whole")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    load_corpus(source, 50, tmp_path / "parts")
    assert _contents(tmp_path / "parts") == _contents(tmp_path / "whole")
    assert not list((tmp_path / "parts").glob("*.partial*"))


def test_bytes_that_another_machine_wrote_are_noticed(tmp_path, monkeypatch, many_points):
    source = _sources(tmp_path / "text")["files"]
    real = corpus_module.batches

    def batches(source, split, place):
        for number, batch in enumerate(real(source, split, place)):
            if number == 6:
                for partial in (tmp_path / "cache").glob("*.tokens.partial"):
                    with partial.open("r+b") as file:  # as without a lock
                        file.seek(8)
                        file.write(b"\1\2\3\4")
            yield batch

    monkeypatch.setattr(corpus_module, "batches", batches)
    with pytest.raises(ValueError, match="was changed while it was written"):
        load_corpus(source, 50, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.tokens*"))


# ---------------------------------------------------------------------- progress


def test_a_small_text_is_loaded_in_silence(text_folder, capsys):
    load_corpus(text_files(text_folder), None, cache_folder())
    assert capsys.readouterr().err == ""


def test_long_work_says_how_far_it_is(tmp_path, monkeypatch, small_batches, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    source = _sources(tmp_path / "text")["shared"]
    load_corpus(source, None, cache_folder())
    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith("bayesrnn: counting the words of t ") for line in said)
    assert any(line.startswith("bayesrnn: tokenising t, valid ") for line in said)
    assert any("%, " in line and line.endswith(" s left") for line in said)
    load_corpus(Unseekable(source), None, tmp_path / "other")
    assert "bayesrnn: tokenising t, train\n" in capsys.readouterr().err


def test_a_bar_in_a_terminal(tmp_path, monkeypatch, small_batches, capsys):
    bars = []

    class Bar(progress._Bar):
        def close(self):
            bars.append(self.bar.tasks[0].description if self.bar else None)
            super().close()

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_Bar", Bar)
    source = _sources(tmp_path / "text")["shared"]
    load_corpus(source, None, tmp_path / "quick")
    assert set(bars) == {None}
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    load_corpus(source, None, tmp_path / "long")
    assert any(text and text.startswith("tokenising t, train, 0 s left") for text in bars)


# ---------------------------------------------------------------------- memory


def _resident() -> float:
    """Megabytes of files in this process's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile"):
            return int(line.split()[1]) / 1024
    pytest.skip("this system does not say")


@pytest.fixture
def tokens(tmp_path) -> torch.Tensor:
    """64 MB of tokens in a file."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    numbers = np.random.default_rng(0).integers(0, 10_000, 16_000_000, dtype=np.int32)
    numbers.tofile(tmp_path / "t.tokens")
    return mapped.map_tokens(tmp_path / "t.tokens")


def _by_cuts(tokens: torch.Tensor) -> float:
    most = 0.0
    for x, y in Cuts(tokens, num_streams=4, unroll=5000):
        assert x.long().shape == y.shape
        most = max(most, _resident())
    return most


def _by_segments(tokens: torch.Tensor) -> float:
    most = 0.0
    for _ in segments(tokens, streams=4, steps=5000):
        most = max(most, _resident())
    return most


def _by_share_known(tokens: torch.Tensor) -> float:
    vocabulary = Vocabulary((UNKNOWN, END, *map(str, range(9998))))
    model = TrainedModel("m", Path("m"), preset("tiny", "lstm"), vocabulary, lambda: None)  # type: ignore
    assert model.share_known(tokens) == pytest.approx(9998 / 9999, abs=1e-5)
    return _resident()


@pytest.mark.parametrize("way", [_by_cuts, _by_segments, _by_share_known])
def test_what_was_read_of_a_text_does_not_stay_in_memory(tokens, monkeypatch, way):
    way(tokens[:100_000])  # whatever libraries this needs are loaded now
    before = _resident()
    assert way(tokens) - before < 32
    monkeypatch.setattr(mapped, "KEPT", 1 << 40)
    assert way(tokens) - before > 50  # or the test could not fail


def test_what_was_written_to_a_text_is_not_let_go(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "KEPT", 0)
    first = int(tokens[0])
    mapped.was_read(tokens, 1)
    assert int(tokens[0]) == first
    tokens[5:][0] = 123_456
    mapped.was_read(tokens, 1)
    assert int(tokens[5]) == 123_456
    assert int(np.fromfile(tmp_path / "t.tokens", np.int32)[5]) != 123_456


def test_other_tensors_are_left_alone(monkeypatch):
    monkeypatch.setattr(mapped, "KEPT", 0)
    plain = torch.arange(1_000_000)
    for x, _ in Cuts(plain, num_streams=10, unroll=50_000):
        x.sum()
    assert torch.equal(plain, torch.arange(1_000_000))


def test_a_mapping_ends_with_its_tensor(tmp_path):
    np.zeros(100, np.int32).tofile(tmp_path / "t.tokens")
    part = mapped.map_tokens(tmp_path / "t.tokens")[10:20]
    place = part.untyped_storage().data_ptr()
    assert place in mapped._MAPPINGS
    del part
    assert place not in mapped._MAPPINGS


def test_who_comes_between_a_file_and_its_record_waits_for_it(tmp_path, monkeypatch, capsys):
    """The file has its name, and its maker is about to write that it is right."""
    path, named, write_record = tmp_path / "file", Event(), resumable.write_record

    def slow(place, values):
        if place == resumable.beside(path):
            named.set()
            time.sleep(0.3)
        write_record(place, values)

    monkeypatch.setattr(resumable, "write_record", slow)
    maker = Thread(
        target=lambda: resumable.ensure(path, lambda p: p.write(b"text") and {}, {}, points=1)
    )
    maker.start()
    assert named.wait(10)
    resumable.ensure(path, lambda _: pytest.fail("it was made again"), {}, points=1)
    maker.join()
    assert path.read_bytes() == b"text"
    assert capsys.readouterr().err == ""
