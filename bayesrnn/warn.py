"""Warnings that point at the line of the user's program, however deep in the library they arise."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = {"bayesrnn", "contextlib", "torch"}
_FRAMEWORKS = {"accelerate", "lightning", "peft", "safetensors", "transformers"}


def warn(message: str) -> None:
    """Warn of the line that called this library, by way of torch or of a framework that trains."""
    # From Python 3.12 on, warnings.warn has skip_file_prefixes for this.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _BETWEEN | _FRAMEWORKS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    """The package whose code has these global names."""
    return str(names.get("__name__", "")).partition(".")[0]
