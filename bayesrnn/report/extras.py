"""What the analyses need beyond the package's own dependencies."""

from __future__ import annotations

from importlib.util import find_spec


def check_extras(*, figures: bool) -> None:
    """Complain before the work, not after it."""
    for module in ("torchmetrics", *(("matplotlib",) if figures else ())):
        if find_spec(module) is None:
            raise ValueError(f"this needs {module}: pip install 'bayesrnn[report]'.")
