"""The kind of a run, that is its experiment, for commands that take runs of more than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

LANGUAGE, DIGITS, CAPTIONS = "language", "mnist", "captions"
"""The experiments by name."""


def kind_of(*paths: Path) -> str:
    """The experiment of some runs; ValueError if there are several.

    What is no run folder counts as a language model, such as an exported file or the name of a model in the
    package: opening it says whether it is one.
    """
    from bayesrnn.training.experiment import open_runs

    folders = [path for path in paths if (path / "config.toml").is_file()]
    others = [path for path in paths if path not in folders]
    if not folders:
        return LANGUAGE
    found, _ = open_runs(folders)
    if others and found.name != LANGUAGE:
        raise ValueError(
            f"{folders[0]} is a run of `bayesrnn {found.command}`, and {others[0]} is not; give runs of one "
            "experiment."
        )
    return found.name


def refusal(path: Path, kind: str, takes: Sequence[str], **instead: str) -> ValueError:
    """What to raise for a kind of run that a command does not take.

    It says which command does, by `instead`: the words after `bayesrnn` by kind, with RUN for the run. For a
    kind that is not there it says which kinds this command takes.
    """
    if kind in instead:
        cure = f"use `bayesrnn {instead[kind].replace('RUN', str(path))}`"
    else:
        cure = f"this needs one of {' or '.join(f'`bayesrnn {_command(name)}`' for name in takes)}"
    return ValueError(f"{path} is a run of `bayesrnn {_command(kind)}`; {cure}.")


def check_unused(command: Any, path: Path, kind: str, *names: str) -> None:
    """Raise ValueError for an option that means nothing for this kind of run, unless it has its default."""
    defaults = {field.name: field.default for field in fields(command)}
    for name in names:
        if getattr(command, name) != defaults[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} is not for runs of `bayesrnn {_command(kind)}`, such as {path}; "
                "leave it out."
            )


def _command(kind: str) -> str:
    from bayesrnn.training.experiment import experiment

    return experiment(kind).command
