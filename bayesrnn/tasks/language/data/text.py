"""Text from a file or folder: words separated by white space, one sentence or paragraph per line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bayesrnn.data.vocabulary import END
from bayesrnn.tasks.language.data.corpus import SPLITS

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
        stats = {path: path.stat() for paths in self.files.values() for path in paths}
        facts = [f"{p.resolve()} {s.st_size} {s.st_mtime_ns}" for p, s in sorted(stats.items())]
        return "\n".join([str(self.shared), *facts])

    def _all_lines(self, split: str) -> Iterator[list[str]]:
        for path in self.files[split]:
            with _open(path) as file:
                for number, raw in enumerate(file, start=1):
                    try:
                        words = raw.decode("utf-8").split()
                    except UnicodeDecodeError as error:
                        raise ValueError(
                            f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). "
                            "Convert the file first."
                        ) from None
                    if words or self.keep_blank:
                        yield [word for word in words if word != END]


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}.") from None


def text_files(path: Path) -> TextFiles:
    """The text at `path`: a folder with train, valid and test files, any other folder, or one file."""
    if path.is_file():
        return TextFiles(path.stem, dict.fromkeys(SPLITS, (path,)), shared=True)
    if not path.is_dir():
        raise ValueError(f"{path}: no such file or folder of text.")
    files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    if not files:
        raise ValueError(f"{path} has no text: no file ending in {', '.join(sorted(_SUFFIXES))}.")
    splits = {split: tuple(p for p in files if _split_of(p) == split) for split in SPLITS}
    name = path.resolve().name
    if all(splits.values()):
        return TextFiles(name, splits, shared=False)
    if any(splits.values()):
        missing = ", ".join(split for split, found in splits.items() if not found)
        raise ValueError(
            f"{path} has files for some splits but none for {missing}; add them, or name the files "
            "without train, valid and test to have the splits made."
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
