"""WikiText-2: two million words of Wikipedia's Good and Featured articles (Merity et al., 2016)."""

from __future__ import annotations

import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

from bayesrnn.data.download import download
from bayesrnn.tasks.language.data.text import TextFiles, text_files

ADDRESS = "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"
MD5 = "542ccefacc6c27f945fb54453812b3cd"


def wikitext2(cache: Path, *, md5: str = MD5) -> TextFiles:
    """The files from the cache, or downloaded from $BAYESRNN_WIKITEXT2_URL or the usual address."""
    folder = cache / "wikitext-2"
    if not folder.exists():
        address = os.environ.get("BAYESRNN_WIKITEXT2_URL", ADDRESS)
        archive = download(address, cache / "wikitext-2-v1.zip", md5=md5)
        temporary = cache / f".wikitext-2.{os.getpid()}"
        temporary.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive) as file:
            for split in ("train", "valid", "test"):
                name = f"wiki.{split}.tokens"
                with (
                    file.open(f"wikitext-2/{name}") as inside,
                    (temporary / name).open("wb") as out,
                ):
                    shutil.copyfileobj(inside, out)
        temporary.rename(folder)
        archive.unlink()
    return replace(text_files(folder), keep_blank=True)  # the published counts include blank lines
