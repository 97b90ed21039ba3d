"""Downloads, with a progress bar and a checksum; a file appears only once it is complete."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path


def cache_folder() -> Path:
    """The folder of prepared corpora and downloads: $BAYESRNN_CACHE, or else the user's cache folder."""
    own = os.environ.get("BAYESRNN_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesrnn"


def download(url: str, path: Path, *, sha256: str | None = None, md5: str | None = None) -> Path:
    """Download `url` to `path` unless it exists already; raise ValueError if the checksum is wrong."""
    if path.exists():
        return path
    from rich.progress import Progress

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    digests = [(hashlib.sha256(), sha256), (hashlib.md5(usedforsecurity=False), md5)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=60) as response,
            temporary.open("wb") as file,
            Progress(transient=True) as progress,
        ):
            length = response.headers.get("Content-Length")
            task = progress.add_task(
                f"downloading {path.name}", total=int(length) if length else None
            )
            while chunk := response.read(1 << 16):
                file.write(chunk)
                for digest, _ in digests:
                    digest.update(chunk)
                progress.advance(task, len(chunk))
        for digest, expected in digests:
            if expected is not None and digest.hexdigest() != expected:
                raise ValueError(
                    f"{url} has the wrong checksum: {digest.name} {digest.hexdigest()}, expected "
                    f"{expected}. Nothing was kept; check the address."
                )
        os.replace(temporary, path)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"cannot download {url} ({reason}). Obtain the files some other way and give their folder "
            "with --data."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path
