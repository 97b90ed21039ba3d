"""docs/prediction.md runs as it stands, and its numbers are what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "prediction.md"


def test_every_block_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert 0.15 < names["scores"].rmse < 0.35  # the noise has sd 0.2
    assert names["prediction"].probs.shape == (200, 3)
    assert names["curve"].at(0.8) < names["curve"].random
    y = names["future"]
    assert 0.8 < ((names["low"] <= y) & (y <= names["high"])).double().mean() < 0.97
    covered = names["mask"].gather(-1, names["labels"][names["test"], None]).double().mean()
    assert 0.88 < covered <= 1
