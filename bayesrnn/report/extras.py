"""What the analyses need beyond the package's own dependencies."""

from __future__ import annotations

from importlib.util import find_spec


def check_extras(*, figures: bool) -> None:
    """Complain before the work, not after it."""
    need("torchmetrics")
    if figures:
        need("matplotlib")


def need(module: str) -> None:
    if find_spec(module) is None:
        raise ValueError(f"this needs {module}: pip install 'bayesrnn[report]'.")
