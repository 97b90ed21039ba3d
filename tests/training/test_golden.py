"""One training curve of each kind, as it was when it was known to be right."""

from __future__ import annotations

import pytest

from bayesrnn.cli import main
from bayesrnn.tasks.language.trained import open_language_run

GOLDEN = {
    "lstm": [29.8257, 27.7160, 16.5963, 10.8964],
    "bbb": [25.4413, 13.9769, 9.3262, 7.7957],
}
"""Validation perplexity after each epoch, at a learning rate of 0.3. The kernels of several instruction sets
(ONEDNN_MAX_CPU_ISA, ATEN_CPU_CAPABILITY) give the same within 0.001%; at 1 they differ by up to a quarter."""


@pytest.mark.parametrize("method", GOLDEN)
def test_the_training_curve_is_the_same(method, text_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    options = (
        "--hidden 12 --epochs 4 --init-scale 0.3 --batch-size 8 --unroll 10 --seed 3 --average 0 "
        "--lr 0.3"
    )
    where = ["--data", str(text_folder), "--run", str(tmp_path / "run")]
    main(["train", "--method", method, *options.split(), *where, "--no-tensorboard", "--json"])
    curve = [
        line["valid_perplexity"]
        for line in open_language_run(tmp_path / "run").read_metrics("epoch")
    ]
    assert curve == pytest.approx(GOLDEN[method], rel=1e-4)
