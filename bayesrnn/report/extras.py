"""Optional dependencies of the analyses."""

from __future__ import annotations

from importlib.util import find_spec


def check_extras(*, figures: bool) -> None:
    """Raise ValueError before any work if an optional dependency is missing."""
    need("torchmetrics")
    if figures:
        need("matplotlib")


def need(module: str, extra: str = "report") -> None:
    """Raise ValueError, with the cure, if a module of an extra is missing."""
    if find_spec(module) is None:
        raise ValueError(f"this needs {module}: pip install 'bayesrnn[{extra}]'.")
