"""The options that the commands that train have in common. No torch here: `--help` must not wait for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a run goes on and what it reports."""

    resume: bool = False
    """Go on with the run where it stopped, with the settings it began with."""
    checkpoint_minutes: float = 10.0
    """Also write a checkpoint every so many minutes."""
    tensorboard: bool = True
    """Write the metrics for TensorBoard too, if it is installed."""
    json: bool = False
    """Print the last epoch's metrics as JSON at the end, and nothing else."""


def option_value(arguments: list[str], option: str) -> str | None:
    """What is given for an option, before the options are parsed."""
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.split("=", 1)[1]
    return None
