"""Whether the files of a run are readable, undamaged and of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bayesrnn.files import JsonLines, sha256_of
from bayesrnn.storage import load_header, load_tensors
from bayesrnn.training.binding import bound_files, check_settings
from bayesrnn.training.checkpoint import FORMAT
from bayesrnn.training.experiment import is_pretrained, no_folder, open_run
from bayesrnn.training.run import Run
from bayesrnn.training.settings import FILES


@dataclass(frozen=True)
class Verdict:
    """What was found of one file."""

    file: Path
    problem: str | None
    """One line, or None if nothing is wrong."""
    note: str = ""
    """What it holds, in a few words."""


def verify(folder: Path) -> list[Verdict]:
    """A verdict for each file of the run in a folder that is there or should be.

    ValueError if the folder has no file of a run.
    """
    if is_pretrained(folder):
        raise no_folder(folder)
    if not any((folder / name).is_file() for name in FILES):
        raise ValueError(f"{folder}: {'not a run' if folder.is_dir() else 'no such run folder'}.")
    try:
        run = open_run(folder)
    except (ValueError, OSError) as error:
        return [Verdict(folder / "config.toml", str(error))]
    found = [Verdict(folder / "config.toml", None, f"{run.config.TASK}, {run.config.method}")]
    tensors = [p for p in (run.weights, run.checkpoint, run.previous_checkpoint) if p.exists()]
    found += [_verdict(path, partial(_check_tensors, run, path)) for path in tensors]
    found += _own_files(tensors)
    lines = [each for each in (run.metrics, run.timing) if each.path.exists()]
    found += [_verdict(each.path, partial(_check_lines, each)) for each in lines]
    if not run.checkpoint.exists():
        found.append(Verdict(run.checkpoint, None, "none yet: the run can only begin anew"))
    return found


def _verdict(path: Path, check: Callable[[], str]) -> Verdict:
    try:
        return Verdict(path, None, check())
    except (ValueError, OSError, KeyError, TypeError) as error:
        return Verdict(path, str(error))


def _check_tensors(run: Run, path: Path) -> str:
    tensors, header = load_tensors(path)
    check_settings(header, path, run.config)
    if path == run.weights:
        return f"{sum(t.numel() for t in tensors.values()):,} numbers{_epoch(header)}"
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} was written by another version of bayesrnn.")
    run.metrics.check(header["metrics_size"], header.get("metrics_sha256"))
    position = header["position"]
    return f"after {_count(position['epoch'], 'epoch')} and {_count(position['cut'], 'step')}"


def _own_files(tensors: Sequence[Path]) -> list[Verdict]:
    """The text files of the experiment, such as the vocabulary, which the headers name."""
    digests: dict[Path, str] = {}
    for path in tensors:
        with suppress(ValueError, OSError):  # they have verdicts of their own
            digests |= bound_files(load_header(path), path)
    return [
        _verdict(path, partial(_check_digest, path, digest)) for path, digest in digests.items()
    ]


def _check_digest(path: Path, digest: str) -> str:
    if sha256_of(path) != digest:
        raise ValueError(f"{path} has changed since the weights were written; restore it.")
    return f"{path.stat().st_size:,} bytes"


def _check_lines(lines: JsonLines) -> str:
    return f"{_count(len(lines.read()), 'line')} of JSON"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _epoch(header: dict[str, Any]) -> str:
    return f" of epoch {header['epoch']}" if "epoch" in header else ""
