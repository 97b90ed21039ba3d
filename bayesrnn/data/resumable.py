"""Files in a cache that take long to make: one process makes each, others wait, and after a kill it goes on.

A file is filled under the name `FILE.partial`. Now and then a point is saved: the bytes so far are flushed,
and `FILE.partial.json` says how many there are, their digest, and from where to go on. Who holds the lock of
the partial file makes it; when it is finished, it gets its own name. A point that does not fit is not used.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from bayesrnn.data.progress import progress
from bayesrnn.data.verified import (
    PARTIAL,
    Hashing,
    Sink,
    beside,
    is_intact,
    notice,
    read_record,
    tidy,
    write_record,
    write_recorded,
)
from bayesrnn.files import flush_folder, identity, printable

SECONDS_BETWEEN_POINTS = 10.0
"""At least."""
SECONDS_OF_SILENCE = 2.0
"""How long a process waits for another before it says so."""
POINT_COST = 10.0
"""They are also this many times as long apart as it took to save the last one."""

Values = Mapping[str, Any]


class Partial:
    """A file that is being made."""

    def __init__(self, file: Sink, point: Values, save: Callable[[Values], None] | None) -> None:
        self.point = point
        """The values of the last saved point, which the file's bytes go up to; empty at the beginning."""
        self._file, self._save, self._last = file, save, time.monotonic()
        self._between = SECONDS_BETWEEN_POINTS

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def at_point(self, values: Callable[[], Values]) -> None:
        """Say that one could go on from here with these values; they are saved if it is time to."""
        began = time.monotonic()
        if self._save is None or began - self._last < self._between:
            return
        self._save(values())
        self._last = time.monotonic()
        self._between = max(SECONDS_BETWEEN_POINTS, POINT_COST * (self._last - began))


def ensure(
    path: Path, write: Callable[[Partial], Values | None], facts: Values, *, points: int
) -> None:
    """Have a file that is intact and made with these facts: the one that is there, or a new one.

    `write` fills it, from the partial file's point on, and returns further facts. `points` is the version of
    the points that it saves; it is given no others.
    """
    told = False
    while not is_intact(path, facts):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        tidy(path.parent)

        def wait() -> None:
            nonlocal told
            if not told:
                notice(f"waiting for another process, which is making {path}.")
            told = True

        with _opened(_partial(path), wait) as file:
            if file is None:  # no locks here, so nobody may go on with what another has begun
                write_recorded(path, lambda sink: write(Partial(sink, {}, None)), facts)
                return
            if not _is_named(file, _partial(path)):  # it was finished, or given up, while we waited
                continue
            _wait_for_its_maker(path)
            if is_intact(path, facts):
                _partial(path).unlink()
                return
            if path.exists():
                notice(f"{path} in the cache is damaged or was never verified; it is made again.")
            _make(path, file, write, facts, points)
            return


def _make(
    path: Path,
    file: BinaryIO,
    write: Callable[[Partial], Values | None],
    facts: Values,
    points: int,
) -> None:
    """Fill a partial file that is ours alone, and give it its name."""
    partial = _partial(path)
    made = {"facts": dict(facts), "points": points}
    hashing, point = _go_on(partial, file, made)
    saved = bool(point)

    def save(values: Values) -> None:
        nonlocal saved
        file.flush()
        os.fsync(file.fileno())
        bytes_so_far = {"size": file.tell(), "sha256": hashing.digest.hexdigest()}
        write_record(beside(partial), {"made": made, "point": values, **bytes_so_far})
        saved = True

    try:
        more = write(Partial(hashing, point, save))
        file.flush()
        os.fsync(file.fileno())
        _check(partial, file, hashing.digest.hexdigest())
        os.replace(partial, path)
        flush_folder(path.parent)
        record = {**facts, **(more or {}), "sha256": hashing.digest.hexdigest()}
        write_record(beside(path), {**record, "identity": identity(path)})
        beside(partial).unlink(missing_ok=True)
    except BaseException as error:
        if isinstance(error, Exception) or not saved:  # else a Ctrl-C: go on another time
            partial.unlink(missing_ok=True)
            beside(partial).unlink(missing_ok=True)
        raise


def _go_on(partial: Path, file: BinaryIO, made: Values) -> tuple[Hashing, Values]:
    """The point to go on from, with the file cut off there; the beginning if anything is not as saved."""
    record = read_record(beside(partial)) or {}
    size, point = record.get("size"), record.get("point")
    hashing = Hashing(file)
    if record.get("made") == made and isinstance(size, int) and isinstance(point, dict):
        _read(file, size, hashing.digest, f"reading {partial.name}")
        if hashing.digest.hexdigest() == record.get("sha256"):
            file.truncate(size)
            file.seek(size)
            return hashing, point
        hashing = Hashing(file)
    beside(partial).unlink(missing_ok=True)
    file.truncate(0)
    file.seek(0)
    return hashing, {}


def _check(partial: Path, file: BinaryIO, expected: str) -> None:
    """Raise ValueError unless the file holds what was written: locks do not hold on every file system."""
    digest = hashlib.sha256()
    size = file.tell()
    _read(file, size, digest, f"verifying {partial.name}")
    if digest.hexdigest() != expected or os.fstat(file.fileno()).st_size != size:
        raise ValueError(
            f"{printable(str(partial))} was changed while it was written, perhaps by another machine; start "
            "again, with BAYESRNN_CACHE set to a folder of this machine."
        )


def _read(file: BinaryIO, size: int, digest: Any, what: str) -> None:
    """Add the first `size` bytes of a file to a digest."""
    file.seek(0)
    left = size
    with progress(what) as tell:
        while left and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
            tell(1 - left / size)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


@contextmanager
def _opened(partial: Path, wait: Callable[[], None]) -> Iterator[BinaryIO | None]:
    """A partial file, old or new, once nobody else has it; None where the system has no locks.

    `wait` is called if somebody has it for long.
    """
    try:
        import fcntl
    except ImportError:
        yield None
        return
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(partial, flags, 0o666), "r+b") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _wait_for(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB), wait)
                fcntl.flock(file, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
            with suppress(OSError):
                partial.unlink()
        yield file if locked else None


def _wait_for_its_maker(path: Path) -> None:
    """Return when nobody has a finished file's lock: its maker keeps it until its record is written."""
    with suppress(ImportError, OSError):
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _wait_for(lock: Callable[[], None], wait: Callable[[], None]) -> None:
    """Try to lock for a while; then say that this may take long."""
    end = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < end:
        with suppress(BlockingIOError):
            lock()
            return
        time.sleep(0.02)
    wait()


def _is_named(file: BinaryIO, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
