import os
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random

import pytest
import torch

from bayesrnn.cli import main
from tests.contracts import CASES, Case, make_case

# The tests run side by side, one on each core; threads of their own would only get in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
torch.set_num_threads(1)

PTB = Path(__file__).parent.parent.parent / "shared" / "data" / "ptb"


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared corpora and downloads of a test stay in the test."""
    monkeypatch.setenv("BAYESRNN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language: each word mostly decides the next."""
    folder = tmp_path_factory.mktemp("text")
    random = Random(0)
    words = [f"w{index}" for index in range(30)]
    for split, lines in [("train", 500), ("valid", 60), ("test", 60)]:
        text = []
        for _ in range(lines):
            line = [random.choice(words)]
            while len(line) < 9:
                follow = (words.index(line[-1]) * 7 + 3) % 30
                line.append(words[follow] if random.random() < 0.8 else random.choice(words))
            text.append(" ".join(line))
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n")
    return folder


@pytest.fixture(scope="session")
def trained(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small finished run of a method; trained once."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def train(method: str) -> Path:
        if method not in done:
            done[method] = folder / method
            options = (
                "--hidden 12 --epochs 3 --init-scale 0.3 --batch-size 8 --unroll 10 --dropout 0.2"
            )
            where = f"--data {text_folder} --run {done[method]} --no-tensorboard --json"
            with redirect_stdout(StringIO()):  # what the test that asked first captures is its own
                main(f"train --method {method} {options} {where}".split())
        return done[method]

    return train


@pytest.fixture
def ptb() -> Path:
    if not PTB.is_dir():
        pytest.skip(
            f"needs the Penn Treebank in {PTB.parent.parent.name}/data/ptb beside the project"
        )
    return PTB
