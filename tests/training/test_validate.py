"""A validation in between: training goes on as if nobody had asked."""

from __future__ import annotations

import pytest
import torch

from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.experiment import EXPERIMENT
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run

FILES = ("metrics.jsonl", "weights.safetensors", "checkpoint.safetensors")


def _trainer(text_folder, folder, method: str, **changes) -> Trainer:
    small = {"hidden": 8, "batch_size": 8, "unroll": 10, "epochs": 2, "data": str(text_folder)}
    config = preset("tiny", method, **{**small, **changes})
    ready = EXPERIMENT.prepare(config, None)
    run = Run.create(folder, config, ready.files)
    return Trainer(run, ready.task, ready.method)


@pytest.mark.parametrize(
    ("method", "average"),
    [
        ("dropout", 0.1),
        ("variational-dropout", 0.0),
        ("sgld", 0.0),
        ("bbb", 0.0),
        ("bbb", 0.1),
        ("sharpened", 0.1),
    ],
)
def test_it_leaves_no_trace(method, average, text_folder, tmp_path):
    plain = _trainer(text_folder, tmp_path / "plain", method, average=average)
    for _ in plain.run():
        pass
    asked = _trainer(text_folder, tmp_path / "asked", method, average=average)
    found = [asked.validate() for state in asked.run() if state.minibatch % 9 == 4]
    assert len(found) == 2 * 7
    assert found[-1] < found[0]
    for name in FILES:
        ours, theirs = (tmp_path / which / name for which in ("asked", "plain"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_it_is_what_the_end_of_the_epoch_measures(text_folder, tmp_path):
    trainer = _trainer(text_folder, tmp_path / "run", "bbb", average=0.5, epochs=1)
    for _ in trainer.run():
        pass
    (line,) = trainer.run_folder.read_metrics("epoch")
    assert trainer.validate() == line["valid_perplexity"]


def test_before_there_is_an_average_it_is_of_the_weights(text_folder, tmp_path):
    trainer = _trainer(text_folder, tmp_path / "run", "lstm", average=0.5)
    assert trainer.average is not None
    steps = trainer.run()
    next(steps)
    with torch.no_grad():
        for average in trainer.average.averages:
            average.fill_(torch.nan)
    assert trainer.validate() < 100
