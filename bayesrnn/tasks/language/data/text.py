"""Text from a file or folder: words separated by white space, one sentence or paragraph per line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bayesrnn.data.verified import file_digest
from bayesrnn.data.vocabulary import END
from bayesrnn.files import identity, printable, sha256_of_text
from bayesrnn.tasks.language.data.batches import BATCH_BYTES, Batch, Place
from bayesrnn.tasks.language.data.corpus import SPLITS

_T = TypeVar("_T")

# A folder's splits by what its file names contain; "val" and "dev" are common names for "valid".
_SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev"), "test": ("test",)}
_SUFFIXES = {".txt", ".tokens", ".text"}


@dataclass(frozen=True)
class TextFiles:
    """Files for each split, or shared files, of which every 20 lines give one to valid and one to test."""

    name: str
    files: dict[str, tuple[Path, ...]]
    shared: bool
    """Whether the splits are made from the same files."""
    keep_blank: bool = False
    """Whether an empty line counts as a line, one `<eos>`."""

    def lines(self, split: str) -> Iterator[list[str]]:
        for batch in self.batches(split, []):
            yield from batch.lines

    def batches(self, split: str, place: Place) -> Iterator[Batch]:
        """The lines from a place on: a file, a byte and a line in it, and the lines that counted before."""
        first, byte, line, counted = place or (0, 0, 0, 0)
        paths = self.files[split]
        sizes = [_of(path, lambda p: p.stat().st_size) for path in paths]
        before, total = sum(sizes[:first]), max(sum(sizes), 1)
        for number in range(first, len(paths)):
            for raw, end in _raw_lines(paths[number], byte):
                lines = self._words(raw, paths[number], line)
                kept = _of_split(split, lines, counted) if self.shared else lines
                line, counted = line + len(raw), counted + len(lines)
                share = min((before + end) / total, 1.0)
                yield Batch(kept, [number, end, line, counted], share)
            before, byte, line = before + sizes[number], 0, 0

    def fingerprint(self) -> str:
        facts = [f"{path.resolve()} {_of(path, identity)}" for path in self._paths()]
        return "\n".join([str(self.shared), *facts])

    def digest(self, memory: Path | None = None) -> str:
        """A digest of the files' bytes and of how they are split; not of where they lie."""
        known = {path: _of(path, lambda p: file_digest(p, memory)) for path in self._paths()}
        splits = {split: [known[path] for path in self.files[split]] for split in SPLITS}
        return sha256_of_text(json.dumps([self.shared, self.keep_blank, splits]))

    def _paths(self) -> list[Path]:
        return sorted({path for paths in self.files.values() for path in paths})

    def _words(self, raw: list[bytes], path: Path, line: int) -> list[list[str]]:
        """The words of some lines that come after `line` others."""
        text = _decoded(raw, path, line)
        lines = [part.split() for part in text.split("\n")[: len(raw)]]
        if not self.keep_blank:
            lines = [words for words in lines if words]
        if END in text:
            lines = [[word for word in words if word != END] for words in lines]
        return lines


def _decoded(raw: list[bytes], path: Path, line: int) -> str:
    """Some lines as text; an error names the line, of those after `line` others."""
    try:
        return b"".join(raw).decode("utf-8")
    except UnicodeDecodeError:
        pass
    for number, part in enumerate(raw, start=line + 1):  # to find the one that is not
        try:
            part.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{printable(str(path))}, line {number}: not UTF-8 ({error.reason} at byte "
                f"{error.start}). Convert the file first."
            ) from None
    raise AssertionError("lines are UTF-8 each, but not together")


def _raw_lines(path: Path, byte: int) -> Iterator[tuple[list[bytes], int]]:
    """The lines of a file from a byte on, some at a time, and the byte after them.

    The byte-order mark that some editors put before the first line is left out.
    """
    try:
        with path.open("rb") as file:
            if byte or file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(byte)
            while lines := file.readlines(BATCH_BYTES):
                yield lines, file.tell()
    except OSError as error:
        raise _unreadable(path, error) from None


def _of_split(split: str, lines: list[list[str]], counted: int) -> list[list[str]]:
    """Those lines that belong to a split, if as many came before them."""
    return [words for number, words in enumerate(lines, counted) if _held_out(number) == split]


def _of(path: Path, ask: Callable[[Path], _T]) -> _T:
    """What a function says of a file; ValueError if the file cannot be read."""
    try:
        return ask(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"cannot read {printable(str(path))}: {error.strerror or error}.")


def text_files(path: Path) -> TextFiles:
    """The text at `path`: a folder with train, valid and test files, any other folder, or one file."""
    if path.is_file():
        return TextFiles(path.stem, dict.fromkeys(SPLITS, (path,)), shared=True)
    if not path.is_dir():
        raise ValueError(f"{printable(str(path))}: no such file or folder of text.")
    entries = _of(path, lambda folder: list(folder.iterdir()))
    files = sorted(p for p in entries if p.suffix in _SUFFIXES and p.is_file())
    if not files:
        raise ValueError(
            f"{printable(str(path))} has no text: no file ending in {', '.join(sorted(_SUFFIXES))}."
        )
    splits = {split: tuple(p for p in files if _split_of(p) == split) for split in SPLITS}
    name = path.resolve().name
    if all(splits.values()):
        return TextFiles(name, splits, shared=False)
    if any(splits.values()):
        missing = ", ".join(split for split, found in splits.items() if not found)
        raise ValueError(
            f"{printable(str(path))} has files for some splits but none for {missing}; add them, or name the "
            "files without train, valid and test to have the splits made."
        )
    return TextFiles(name, dict.fromkeys(SPLITS, tuple(files)), shared=True)


def _split_of(path: Path) -> str | None:
    parts = path.name.lower().replace("-", ".").replace("_", ".").split(".")
    for split, names in _SPLIT_NAMES.items():
        if any(name in parts for name in names):
            return split
    return None


def _held_out(line: int) -> str:
    return {18: "valid", 19: "test"}.get(line % 20, "train")
