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
        for number, line in enumerate(self._all_lines(split)):
            if not self.shared or split == _held_out(number):
                yield line

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

    def _all_lines(self, split: str) -> Iterator[list[str]]:
        for path in self.files[split]:
            for number, raw in enumerate(_raw_lines(path), start=1):
                try:
                    words = raw.decode("utf-8").split()
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{printable(str(path))}, line {number}: not UTF-8 ({error.reason} at byte "
                        f"{error.start}). Convert the file first."
                    ) from None
                if words or self.keep_blank:
                    yield [word for word in words if word != END]


def _raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, without the byte-order mark that some editors put before the first."""
    try:
        with path.open("rb") as file:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            yield from file
    except OSError as error:
        raise _unreadable(path, error) from None


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
