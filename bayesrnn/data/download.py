"""Downloads, limited in size and time, with a checksum; a file appears only once it is complete.

What was downloaded is verified again on every use, and downloaded anew if it is damaged.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesrnn.data.verified import file_digest, notice, tidy
from bayesrnn.files import printable, write_atomically

MOST_BYTES = 100_000_000
PATIENCE = 60.0
"""Seconds that a server may take at all, however little it has to send."""
SLOWEST = 5_000.0
"""Bytes per second that it must send on average after that. With the limit of size, this limits the time."""


def cache_folder() -> Path:
    """The folder of prepared corpora and downloads: $BAYESRNN_CACHE, or else the user's cache folder."""
    own = os.environ.get("BAYESRNN_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesrnn"


def download(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    most: int = MOST_BYTES,
    cache: Path | None = None,
) -> Path:
    """Download `url`, of at most `most` bytes, to `path`, unless it is there and has the right checksum.

    Raises ValueError if that fails. Digests are remembered in the folder `cache`.
    """
    try:
        if path.is_file():
            if _is_right(path, sha256, md5, cache or cache_folder()):
                return path
            notice(f"{path} is damaged; it is downloaded again.")
        path.parent.mkdir(parents=True, exist_ok=True)
        tidy(path.parent)
        write_atomically(
            path, lambda temporary: _fetch(url, Path(temporary), path.name, sha256, md5, most)
        )
    except OSError as error:
        raise ValueError(
            f"cannot write {printable(str(path))}: {error.strerror or error}. Set BAYESRNN_CACHE to a folder "
            "that can be written."
        ) from None
    return path


def _is_right(path: Path, sha256: str | None, md5: str | None, cache: Path) -> bool:
    try:
        if sha256 is not None and file_digest(path, cache / "digests") != sha256:
            return False
        if md5 is None:
            return True
        with path.open("rb") as file:
            return hashlib.file_digest(file, _md5).hexdigest() == md5
    except OSError:
        return False


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _fetch(url: str, path: Path, name: str, sha256: str | None, md5: str | None, most: int) -> None:
    """Write what is at `url` to `path`; ValueError unless it is what the checksums say."""
    from rich.console import Console
    from rich.progress import Progress

    digests = [(hashlib.sha256(), sha256), (_md5(), md5)]
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with path.open("wb") as file, bar:
        task = bar.add_task(f"downloading {name}", total=None)
        for chunk, length in _received(url, most):
            file.write(chunk)
            for digest, _ in digests:
                digest.update(chunk)
            bar.update(task, advance=len(chunk), total=length)
    for digest, expected in digests:
        if expected is not None and digest.hexdigest() != expected:
            raise ValueError(
                f"{printable(url)} has the wrong checksum: {digest.name} {digest.hexdigest()}, expected "
                f"{expected}. Nothing was kept; check the address."
            )


def _received(url: str, most: int) -> Iterator[tuple[bytes, int | None]]:
    """The content at `url` in chunks, each with the announced length of all, if one was announced.

    Another thread waits for the server, so that none can keep this one waiting.
    """
    transfer = _Transfer(url)
    transfer.start()
    begin, received = time.monotonic(), 0
    try:
        while True:
            left = begin + PATIENCE + received / SLOWEST - time.monotonic()
            if left <= 0:
                raise _failed(url, f"too slow: {received:,} bytes in {PATIENCE:g} seconds and more")
            with suppress(queue.Empty):
                chunk = transfer.next(left)
                if not chunk:
                    break
                received += len(chunk)
                if max(received, transfer.length or 0) > most:
                    raise _failed(url, f"larger than {most:,} bytes")
                yield chunk, transfer.length
    finally:
        transfer.stopped.set()
    if transfer.length is not None and received != transfer.length:
        raise _failed(url, f"it ended after {received:,} of {transfer.length:,} bytes")


class _Transfer(threading.Thread):
    """Reads an address into a short queue: chunks, then an empty one, or what went wrong."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.length: int | None = None
        self.stopped = threading.Event()
        self._chunks: queue.Queue[bytes | str] = queue.Queue(maxsize=16)

    def next(self, timeout: float) -> bytes:
        """The next chunk, empty at the end; queue.Empty if none comes in time; ValueError if it failed."""
        chunk = self._chunks.get(timeout=timeout)
        if isinstance(chunk, str):
            raise _failed(self.url, chunk)
        return chunk

    def run(self) -> None:
        try:
            with _open(self.url) as response:
                if not getattr(response, "chunked", False):  # then the length means nothing
                    self.length = _length(response.headers.get_all("Content-Length"))
                while chunk := response.read1(1 << 16):  # whatever has come, not all of it
                    if not self._put(chunk):
                        return
            self._put(b"")
        except Exception as error:  # the library raises nearly anything for what a server may send
            self._put(str(getattr(error, "reason", "") or error) or type(error).__name__)
            if isinstance(error, urllib.error.HTTPError):
                error.close()

    def _put(self, chunk: bytes | str) -> bool:
        """Add to the queue; False if nobody waits for it any more."""
        while not self.stopped.is_set():
            with suppress(queue.Full):
                self._chunks.put(chunk, timeout=0.5)
                return True
        return False


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirections to the web only: not to files of this machine."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise ValueError(f"redirected to {newurl}, which is not on the web")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any):
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except BaseException:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _open(url: str) -> Any:
    return urllib.request.build_opener(_WebOnly).open(url, timeout=PATIENCE)


def _length(announced: list[str] | None) -> int | None:
    """The announced length; ValueError if it is none."""
    if not announced:
        return None
    text = announced[0].strip()
    if len(set(announced)) > 1 or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"invalid Content-Length {', '.join(announced)[:100]!r}")
    return int(text)


def _failed(url: str, reason: str) -> ValueError:
    reason = printable(" ".join(reason.split())).rstrip(".")[:300]
    return ValueError(
        f"cannot download {printable(url)} ({reason}). Obtain the files some other way and give their "
        "folder with --data."
    )
