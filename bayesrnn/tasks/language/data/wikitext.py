"""WikiText-2: two million words of Wikipedia's Good and Featured articles (Merity et al., 2016)."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from bayesrnn.data.download import download
from bayesrnn.data.verified import Sink, is_intact, notice, write_recorded
from bayesrnn.files import printable
from bayesrnn.tasks.language.data.corpus import SPLITS
from bayesrnn.tasks.language.data.text import TextFiles

ADDRESS = "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"
MD5 = "542ccefacc6c27f945fb54453812b3cd"
WORDS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
"""The published counts, ends of lines included."""

MOST_PACKED = 10_000_000
MOST_UNPACKED = 50_000_000
"""Bytes of a file inside the archive."""
MOST_RATIO = 20
"""Of such a file's size to the archive's; unless it is smaller than `SMALL`."""
SMALL = 1_000_000


def wikitext2(cache: Path, *, md5: str = MD5) -> TextFiles:
    """The files from the cache, or downloaded from $BAYESRNN_WIKITEXT2_URL or the usual address."""
    folder = cache / "wikitext-2"
    files = {split: (folder / f"wiki.{split}.tokens",) for split in SPLITS}
    text = TextFiles("wikitext-2", files, shared=False, keep_blank=True)  # as the counts do
    missing = [split for split in SPLITS if not is_intact(files[split][0], {"archive": md5})]
    if missing and not _is_earlier(text):
        _unpack(cache, {split: files[split][0] for split in missing}, md5)
    elif missing:
        for (path,) in files.values():
            _write(path, _chunks(path), md5)
    return text


def _is_earlier(text: TextFiles) -> bool:
    """Whether an earlier version, which kept no digests, unpacked these files, and their counts are right."""
    paths = [path for paths in text.files.values() for path in paths]
    if any(path.with_name(f"{path.name}.json").exists() or not path.is_file() for path in paths):
        return False
    try:
        return all(
            sum(len(line) + 1 for line in text.lines(split)) == WORDS[split] for split in SPLITS
        )
    except ValueError:
        return False


def _unpack(cache: Path, files: dict[str, Path], md5: str) -> None:
    """Write the files of some splits from the archive, which is downloaded unless it is there."""
    for path in files.values():
        if path.exists():
            notice(f"{path} is damaged or was never verified; it is unpacked again.")
    address = os.environ.get("BAYESRNN_WIKITEXT2_URL", ADDRESS)
    archive = cache / "wikitext-2-v1.zip"
    download(address, archive, md5=md5, most=MOST_PACKED, cache=cache)
    for split, path in files.items():
        _write(path, _unpacked(archive, f"wikitext-2/wiki.{split}.tokens"), md5)


def _write(path: Path, chunks: Iterator[bytes], md5: str) -> None:
    def write(file: Sink) -> None:
        for chunk in chunks:
            file.write(chunk)

    try:
        write_recorded(path, write, {"archive": md5})
    except OSError as error:
        raise ValueError(
            f"cannot write {printable(str(path))}: {error.strerror or error}. Set BAYESRNN_CACHE to a folder "
            "that can be written."
        ) from None


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(1 << 16):
            yield chunk


def _unpacked(archive: Path, name: str) -> Iterator[bytes]:
    """The content of a file in an archive, no more than can be expected; a bad archive is removed."""
    try:
        limit = min(MOST_UNPACKED, max(SMALL, MOST_RATIO * archive.stat().st_size))
        with zipfile.ZipFile(archive) as whole:
            about = whole.getinfo(name)
            if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("an unexpected kind of compression")  # not unpacked bit by bit
            with whole.open(about) as file:
                while chunk := file.read(1 << 16):
                    limit -= len(chunk)
                    if limit < 0:
                        raise ValueError("it is larger inside than the text can be")
                    yield chunk
    except Exception as error:  # a bad archive raises nearly anything
        archive.unlink(missing_ok=True)
        reason = printable(" ".join(str(error).split()))[:200]
        raise ValueError(
            f"{printable(str(archive))} is not the archive expected ({reason}) and was removed; check the "
            "address BAYESRNN_WIKITEXT2_URL, if you set it, and start again."
        ) from None
