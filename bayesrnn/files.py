"""Files that nothing can falsify: how the package writes, locks, digests and names them. No torch here.

Every file appears whole or not at all: it is written under a temporary name, flushed to the disk and renamed.
Temporary names are random and have one pattern, so that only our own are ever removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX, SUFFIX = ".bayesrnn-", ".tmp"
LOCK = ".bayesrnn-lock"


# ---------------------------------------------------------------------- writing


def write_atomically(
    path: str | os.PathLike[str], write: Callable[[str], Any], *, keep: Path | None = None
) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: readers never see a partial file.

    The file that was there is kept under the name `keep`, if one is given.
    """
    path = Path(path)
    check_writable(path)
    remove_temporaries(path.parent)
    with _temporary_for(path) as temporary:
        write(str(temporary))
        _flush(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        if keep is not None and path.exists():
            _keep(path, keep, temporary.with_name("kept"))
        os.replace(temporary, path)
        flush_folder(path.parent)


@contextmanager
def _temporary_for(path: Path) -> Iterator[Path]:
    """A temporary name in a folder of its own beside `path`, in which libraries may have theirs too.

    The folder is locked: so it is known to be in use, and for how long.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=SUFFIX, dir=path.parent))
    try:
        with free_file(folder):
            yield folder / "file"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes have left half written in a folder."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        if path.is_dir() and not path.is_symlink():
            with free_file(path) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def free_file(path: Path) -> Iterator[bool]:
    """Lock a file or folder for the block, if nobody else has; whether that was possible."""
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (ImportError, OSError):  # no such locks on this system; or it has just gone
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(handle)


def _keep(path: Path, name: Path, link: Path) -> None:
    """Give a file a second name, without a moment at which it has lost its own."""
    try:
        os.link(path, link)
        os.replace(link, name)
    except OSError:  # a file system without links
        os.replace(path, name)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_atomically(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def check_writable(path: Path) -> None:
    """Raise ValueError unless a file can be written there; to be called before long work."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file.")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: no such folder; create it first.")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path.parent}: no permission to write there.")


@dataclass(frozen=True)
class Written:
    """The files that a command writes: they are what it may replace."""

    command: str
    begins: bytes
    """A regular expression for how such a file begins."""


EXPORT = Written(
    "prune --export",
    rb'.{8}\{"__metadata__":\{"bayesrnn":.*\\"model\\": \\"word-lm\\"',
)
PAGE = Written("report", rb"<!doctype html")
RESULTS = Written("captions evaluate --out", rb'\[\s*(\]|\{\s*"image_id")')


def check_output(path: Path, written: Written | None = None) -> None:
    """Raise ValueError unless `path`, which a user named for output, may be written or replaced.

    Only regular files are replaced, and none inside a run folder. If `written` is given, a file that is there
    must be empty or begin as those do.
    """
    check_writable(path)
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise ValueError(f"{path} is a link; name the file itself.")
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is no regular file; name another.")
    check_outside_runs(path)
    if written is not None and path.exists() and not _begins_as(path, written):
        raise ValueError(
            f"{path} exists and is no file of `bayesrnn {written.command}`; choose another name."
        )


def check_outside_runs(path: Path) -> None:
    """Raise ValueError for a run folder and for what lies in one."""
    if is_run(path):
        raise ValueError(f"{path} is a run; choose a place outside.")
    for folder in (*path.absolute().parents, *path.resolve().parents):
        if is_run(folder):
            raise ValueError(f"{path} lies inside the run {folder}; choose a place outside.")


def _begins_as(path: Path, written: Written) -> bool:
    with open(path, "rb") as file:
        beginning = file.read(1_000_000)
    found = re.match(written.begins, beginning, re.DOTALL | re.IGNORECASE)
    return not beginning or found is not None


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run, finished or not, damaged or not."""
    if not (folder / "config.toml").exists():
        return False
    others = ("metrics.jsonl", "vocabulary.txt", "checkpoint.safetensors", "weights.safetensors")
    if any((folder / name).exists() for name in others):
        return True
    with suppress(OSError), open(folder / "config.toml", "rb") as file:
        return file.read(9) == b"format = "
    return False


def flush_folder(folder: Path) -> None:
    """Have a folder's entries on the disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---------------------------------------------------------------------- locks


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside the block no other process can lock the folder; ValueError, with who holds it, if one has.

    The lock is the system's (flock), so it ends with its process, however that ends.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(folder / LOCK, flags, 0o666)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}.") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 500).decode("utf-8", "replace") or "another process"
            raise ValueError(
                f"{folder} is in use by {printable(holder)}; wait for it to end."
            ) from None
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode())
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------- digests


def sha256_of(path: str | os.PathLike[str], tell: Callable[[float], None] | None = None) -> str:
    """The SHA-256 of a file's bytes; `tell` is told the share that was read."""
    with open(path, "rb") as file:
        if tell is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest, size = hashlib.sha256(), max(os.fstat(file.fileno()).st_size, 1)
        while data := file.read(1 << 20):
            digest.update(data)
            tell(min(file.tell() / size, 1.0))
        return digest.hexdigest()


def sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def identity(path: Path) -> list[int]:
    """What changes whenever a file's bytes do, short of a fault of the disk: no program can set all of it."""
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


# ---------------------------------------------------------------------- JSON lines


class _Line(dict[str, Any]):
    """The values of a line, which name it if one that is asked for is missing."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        super().__init__(values)
        self._place = place

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self._place} has no {name!r}; restore the file from a copy.")


def _seal(values: Mapping[str, Any], seal: str) -> str:
    text = json.dumps({k: v for k, v in values.items() if k != "check"}, sort_keys=True)
    return sha256_of_text(seal + text)[:16]


@dataclass(frozen=True)
class JsonLines:
    """A file of one JSON object a line, to which lines are appended."""

    path: Path
    seal: str | None = None
    """If given, each line has a checksum of its own, which depends on this text."""

    def append(self, values: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._line(values))

    def _line(self, values: Mapping[str, Any]) -> str:
        if self.seal is not None:
            values = {**values, "check": _seal(values, self.seal)}
        return json.dumps(values, allow_nan=False) + "\n"

    def read(self, *, skip_damaged: bool = False) -> list[dict[str, Any]]:
        """All whole lines; what a crash left of the last one is no line."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        found = []
        for number, line in enumerate(whole, 1):
            try:
                found.append(self._parse(number, line))
            except ValueError:
                if not skip_damaged:
                    raise
        return found

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        place = f"{self.path}, line {number},"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise ValueError(
                f"{place} is damaged: it is no JSON object. Restore the file from a copy."
            )
        if self.seal is not None and values.get("check") not in (None, _seal(values, self.seal)):
            raise ValueError(f"{place} was changed: its checksum does not match. Restore the file.")
        return _Line(values, place)

    def sync(self) -> tuple[int, str]:
        """Have all lines on the disk; returns the file's size and SHA-256."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())
        data = self.path.read_bytes()
        return len(data), hashlib.sha256(data).hexdigest()

    def check(self, size: int, sha256: str | None) -> None:
        """Raise ValueError unless the file begins with these bytes; without a digest, with as many."""
        data = self.path.read_bytes()[:size] if self.path.exists() else b""
        if len(data) < size:
            raise ValueError(f"{self.path} is shorter than at the last checkpoint; restore it.")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"{self.path} is not as it was at the last checkpoint; restore it.")

    def truncate(self, size: int) -> None:
        """Remove what comes after `size` bytes."""
        if not self.path.exists():
            self.path.touch()
        os.truncate(self.path, size)

    def rewrite(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace all lines, atomically."""
        write_text(self.path, "".join(map(self._line, lines)))


# ---------------------------------------------------------------------- text for people


def printable(text: str) -> str:
    """Text with control characters escaped, so that none can command the terminal it is shown on."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def expanded(path: str) -> Path:
    """A path with ~ expanded; ValueError for a user who does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: no such user; write ./{path} for a file of that name.") from None
