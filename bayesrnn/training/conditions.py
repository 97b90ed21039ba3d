"""What the last bits of a result depend on, beside a run's settings."""

from __future__ import annotations

from typing import Any

import torch

from bayesrnn import ranks
from bayesrnn.kernels import lstm, one_pass


def conditions(device: torch.device, precision: str) -> dict[str, Any]:
    """The conditions under which this process trains."""
    found = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "compiled": one_pass.enabled,
        "device": device.type,
        "ranks": ranks.world(),
    }
    if precision == "bf16" and device.type == "cpu":
        found["bf16 in torch's LSTM"] = lstm.torch_computes_bf16()
    return found


def changed(before: Any, now: dict[str, Any]) -> list[str]:
    """A line that names those which are not as they were, if there are any."""
    before = before if isinstance(before, dict) else now
    differ = [
        f"{name} {before[name]}, now {now[name]}"
        for name in now
        if before.get(name, now[name]) != now[name]
    ]
    if not differ:
        return []
    return [
        f"resumed under other conditions ({'; '.join(differ)}): results are as good, but not equal to "
        "the last bit to those of a run that was never stopped."
    ]
