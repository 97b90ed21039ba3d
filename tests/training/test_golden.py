"""One training curve of each kind, as it was when it was known to be right."""

from __future__ import annotations

import pytest

from bayesrnn.cli import main
from bayesrnn.tasks.language.trained import open_language_run

GOLDEN = {
    "lstm": [27.8672, 12.9470, 8.7833, 6.1118],
    "bbb": [21.2326, 13.5049, 11.5346, 9.5981],
}
"""Validation perplexity after each epoch. Rounding differs between processors, by far less than 1%."""


@pytest.mark.parametrize("method", GOLDEN)
def test_the_training_curve_is_the_same(method, text_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    options = (
        "--hidden 12 --epochs 4 --init-scale 0.3 --batch-size 8 --unroll 10 --seed 3 --average 0"
    )
    where = ["--data", str(text_folder), "--run", str(tmp_path / "run")]
    main(["train", "--method", method, *options.split(), *where, "--no-tensorboard", "--json"])
    curve = [
        line["valid_perplexity"]
        for line in open_language_run(tmp_path / "run").read_metrics("epoch")
    ]
    assert curve == pytest.approx(GOLDEN[method], rel=0.01)
