"""Files whose bytes are known to be right, though they are not read on every use.

A record is a small JSON file with a checksum of its own. It holds the SHA-256 of a file, and the identity
that the file had when it was last read and found right: while that is unchanged, so are the bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from bayesrnn.data.progress import progress
from bayesrnn.files import (
    free_file,
    identity,
    printable,
    remove_temporaries,
    sha256_of,
    sha256_of_text,
    write_atomically,
    write_text,
)

SETTLED = 2.0
"""Seconds. A file of someone else that changed later than this ago may change again within the same tick of
its file system's clock, unseen: its digest is not remembered yet."""

STALE = 24 * 3600.0
"""Seconds after which a temporary file of an earlier version was left by a process that was killed."""

PARTIAL = ".partial"
"""How the name of a file ends that is being made, and that a later process can go on with."""
FORGOTTEN = 7 * 24 * 3600.0
"""Seconds after which nobody will go on with it."""

# Names that earlier versions gave their temporary files: the final name between a dot and a process id.
_EARLIER = re.compile(r"\..+-(train|valid|test|vocabulary)-[0-9a-f]{16}\.(tokens|txt)\.\d+")


# ---------------------------------------------------------------------- files of our own


class Sink(Protocol):
    """What a file can be written to."""

    def write(self, data: bytes, /) -> int: ...


def write_recorded(
    path: Path, write: Callable[[Sink], Mapping[str, Any] | None], facts: Mapping[str, Any]
) -> None:
    """Write a file atomically, and a record of its bytes beside it, with some facts and those of `write`."""
    record = dict(facts)

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            hashing = Hashing(file)
            record.update(write(hashing) or {})
            record["sha256"] = hashing.digest.hexdigest()

    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    tidy(path.parent)
    write_atomically(path, fill)
    write_record(beside(path), {**record, "identity": identity(path)})


def is_intact(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a file is as `write_recorded` left it, with the same facts.

    It is read only if it was touched since the last time.
    """
    tidy(path.parent)
    record = read_record(beside(path))
    if record is None or any(record.get(name) != value for name, value in facts.items()):
        return False
    try:
        now = identity(path)
        if record.get("identity") == now:
            return True
        if sha256_of(path) != record.get("sha256") or identity(path) != now:
            return False
    except OSError:
        return False
    with suppress(OSError, ValueError):  # a folder that cannot be written: read it again next time
        write_record(beside(path), {**record, "identity": now})
    return True


def beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


class Hashing:
    """A file to write to, and the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.file.write(data)


# ---------------------------------------------------------------------- files of others


def file_digest(path: Path, memory: Path | None = None) -> str:
    """The SHA-256 of a file, remembered in the folder `memory` until the file is touched."""
    if memory is None:
        return _shown_sha256(path)
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    before = identity(path)
    since = time.time() - SETTLED
    digest = remembered(
        memory, key, before, lambda: _shown_sha256(path), lambda: before[2] < since * 1e9
    )
    if identity(path) != before:
        raise ValueError(f"{printable(str(path))} changed while it was read; start again.")
    return digest


def _shown_sha256(path: Path) -> str:
    with progress(f"reading {path}") as tell:
        return sha256_of(path, tell)


def remembered(
    memory: Path,
    key: str,
    state: Any,
    compute: Callable[[], str],
    lasts: Callable[[], bool] = lambda: True,
) -> str:
    """A digest under a key of letters and digits, computed anew when the state is another."""
    tidy(memory)
    path = memory / f"{key}.json"
    record = read_record(path)
    if record is not None and record.get("state") == state:
        sha256 = record.get("sha256")
        if isinstance(sha256, str):
            return sha256
    sha256 = compute()
    if lasts():
        with suppress(OSError, ValueError):  # what cannot be remembered is computed again
            memory.mkdir(parents=True, exist_ok=True)
            write_record(path, {"state": state, "sha256": sha256})
    return sha256


# ---------------------------------------------------------------------- records


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, sort_keys=True)
    write_text(path, json.dumps({"record": values, "sha256": sha256_of_text(text)}))


def read_record(path: Path) -> dict[str, Any] | None:
    """A record; None if there is none, or it is damaged."""
    try:
        content = json.loads(path.read_bytes())
        values = content["record"]
        text = json.dumps(values, sort_keys=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = isinstance(values, dict) and content.get("sha256") == sha256_of_text(text)
    return values if whole else None


# ---------------------------------------------------------------------- temporary files


@cache
def tidy(folder: Path) -> None:
    """Remove, once in a process, what killed ones have left half written in a folder of ours."""
    with suppress(OSError):
        remove_temporaries(folder)
        for path in folder.iterdir():
            old = time.time() - path.lstat().st_mtime > STALE
            if old and _EARLIER.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
        for path in (*folder.glob(f"*{PARTIAL}"), *folder.glob(f"*{PARTIAL}.json")):
            if time.time() - path.lstat().st_mtime > FORGOTTEN:
                _forget(path)


def _forget(path: Path) -> None:
    """Remove a file that nobody has gone on with, unless somebody has it after all."""
    with free_file(path) as free:
        if free:
            path.unlink(missing_ok=True)


# ---------------------------------------------------------------------- notices


def notice(line: str) -> None:
    """Tell the user on standard error what was found and mended."""
    print(f"bayesrnn: {printable(line)}", file=sys.stderr)
