"""Figures of different data, or with different vocabularies, are not put beside each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bayesrnn.cli import main
from tests.cli.test_language_model import fail as fail

SMALL = "--hidden 4 --epochs 1 --batch-size 8 --unroll 10 --no-tensorboard --json"


@pytest.fixture(scope="module")
def other_text(text_folder, tmp_path_factory) -> Path:
    """Another text of the same words, which are not in the same order by frequency."""
    folder, random = tmp_path_factory.mktemp("other"), Random(1)
    for split in ("train", "valid", "test"):
        lines = (text_folder / f"{split}.txt").read_text().splitlines()
        random.shuffle(lines)
        extra = ["w29 w28 w27"] * (200 if split == "train" else 0)
        (folder / f"{split}.txt").write_text("\n".join([*lines, *extra]) + "\n")
    return folder


@pytest.fixture(scope="module")
def runs(text_folder, other_text, tmp_path_factory) -> dict[str, Path]:
    """A Bayesian run, and others of which each differs from it in one way."""
    folder = tmp_path_factory.mktemp("runs")
    copy = shutil.copytree(text_folder, folder / "copy-of-the-text")
    options = {
        "first": f"--method bbb --data {text_folder}",
        "same": f"--method lstm --data {copy}",
        "words": f"--method lstm --data {text_folder} --vocabulary 20",
        "text": f"--method lstm --data {other_text}",
    }
    for name, chosen in options.items():
        main(f"train {chosen} {SMALL} --run {folder / name}".split())
    return {name: folder / name for name in options}


COMMANDS = {
    "compare": ["compare", "RUN", "OTHER"],
    "uncertainty": ["uncertainty", "RUN", "OTHER", "--samples", "1", "--noise", "0.1"],
    "calibration": ["calibration", "RUN", "OTHER", "--samples", "0"],
    "prune": ["prune", "RUN", "--baseline", "OTHER"],
    "report": ["report", "RUN", "OTHER"],
}


def _words(command: str, runs: dict[str, Path], other: str, *more: object) -> list[str]:
    places = {"RUN": str(runs["first"]), "OTHER": str(runs[other])}
    return [places.get(word, word) for word in COMMANDS[command]] + [str(word) for word in more]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_different_vocabulary_is_refused(command, runs, fail, tmp_path, text_folder):
    out = [] if command == "compare" else ["--out", tmp_path / "out"]
    for data in ([], ["--data", text_folder]):  # nor does one text help
        said = fail(*_words(command, runs, "words", *out, *data))
        assert f"first (text {text_folder}, 32 words)" in said
        assert f"words (text {text_folder}, 20 words) have different vocabularies" in said
        assert "give one at a time" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_different_text_is_refused(command, runs, fail, tmp_path, text_folder, other_text):
    out = [] if command == "compare" else ["--out", tmp_path / "out"]
    said = fail(*_words(command, runs, "text", *out))
    assert f"were trained on different text ({text_folder} and {other_text}: the" in said
    assert "give --data" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["compare", "uncertainty", "calibration", "prune"])
def test_one_text_for_both_is_compared(command, runs, text_folder, capsys):
    capsys.readouterr()
    main(_words(command, runs, "text", "--data", text_folder, "--json"))
    main(_words(command, runs, "same", "--json"))  # the same text in another folder
    assert capsys.readouterr().out


def test_a_comparison_on_one_text_agrees_with_evaluate(runs, text_folder, capsys):
    capsys.readouterr()
    main(_words("compare", runs, "text", "--data", text_folder, "--json"))
    main(["evaluate", str(runs["text"]), "--data", str(text_folder), "--json"])
    rows, evaluated = map(json.loads, capsys.readouterr().out.splitlines())
    assert rows[1]["test"] == evaluated["perplexity"]


# ---------------------------------------------------------------------- digits


def _write_idx(folder: Path, pixels: int) -> Path:
    """Random digits as the four files of MNIST."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for split, count in [("train", 60), ("t10k", 20)]:
        images = random.integers(0, 256, (count, pixels, pixels), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, values in [("images-idx3", images), ("labels-idx1", labels)]:
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            head = bytes([0, 0, 8, values.ndim]) + sizes
            (folder / f"{split}-{name}-ubyte").write_bytes(head + values.tobytes())
    return folder


@pytest.fixture(scope="module")
def digits_runs(tmp_path_factory) -> dict[str, Path]:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    options = {
        "first": "",
        "white": "--white 1 --valid 100",
        "images": f"--data {_write_idx(folder / 'idx8', 8)}",
        "large": f"--data {_write_idx(folder / 'idx12', 12)}",
    }
    small = "--method bbb --hidden 8 --epochs 1 --no-tensorboard --json"
    for name, chosen in options.items():
        main(f"mnist {small} {chosen} --run {folder / name}".split())
    return {name: folder / name for name in options}


@pytest.mark.parametrize("command", COMMANDS)
def test_different_images_are_refused(command, digits_runs, fail, tmp_path, capsys):
    out = [] if command == "compare" else ["--out", tmp_path / "out"]
    if command == "uncertainty":
        words = ["uncertainty", digits_runs["first"], digits_runs["images"], "--samples", 1]
    else:
        words = _words(command, digits_runs, "images")
    said = fail(*words, *out)
    assert "first and images have different test images (digits, 8 pixels wide" in said
    assert "give --data" in said
    assert "give one at a time" in fail(*_words("compare", digits_runs, "large"))
    assert list(tmp_path.iterdir()) == []
    if command in ("compare", "calibration"):
        main([*map(str, words), "--data", "digits", "--json"])
        assert capsys.readouterr().out


def test_the_same_images_with_another_white_are_compared(digits_runs, capsys):
    capsys.readouterr()
    main(_words("compare", digits_runs, "white"))
    said = capsys.readouterr()
    assert "val error is of different examples (first 239, white 100)" in said.err
    main(["compare", str(digits_runs["first"])])
    assert capsys.readouterr().err == ""
