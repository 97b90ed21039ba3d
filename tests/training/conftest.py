from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bayesrnn.tasks.language.config import preset
from bayesrnn.tasks.language.experiment import EXPERIMENT
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run


@pytest.fixture
def new_trainer(text_folder: Path, tmp_path: Path) -> Callable[..., Trainer]:
    """Makes a trainer of a small model for one epoch, in a run folder of the name given."""

    def make(name: str, method: str, **changes) -> Trainer:
        small = {"hidden": 8, "batch_size": 8, "unroll": 10, "epochs": 1, "data": str(text_folder)}
        config = preset("tiny", method, **{**small, **changes})
        ready = EXPERIMENT.prepare(config, None)
        return Trainer(Run.create(tmp_path / name, config, ready.files), ready.task, ready.method)

    return make
