"""The options of the commands: their types, with bounds, and one check of all of them before any work.

A command declares a bound as part of an option's type, such as `samples: Samples = 10`. An option of another
type of number is checked to be finite, and every path and text to be one that the system can use.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from bayesrnn.files import check_output, check_outside_runs, check_writable, expanded


@dataclass(frozen=True)
class Between:
    """The bounds of a number, which are allowed themselves unless `open` says otherwise."""

    low: float
    high: float
    open: str = ""
    """ "low", "high" or "both": the bounds that are not allowed."""

    def holds(self, value: float) -> bool:
        below = value > self.low if self.open in ("low", "both") else value >= self.low
        above = value < self.high if self.open in ("high", "both") else value <= self.high
        return below and above

    def rule(self, value: float) -> str:
        """What the value must be, naming the bound it breaks."""
        if not value > self.low and self.open in ("low", "both"):
            return f"must be above {_number(self.low)}"
        if not value >= self.low:
            return f"must be {_number(self.low)} or more"
        kind = "below" if self.open in ("high", "both") else "at most"
        return f"must be {kind} {_number(self.high)}"


class Place:
    """Marks a text that may name a file or folder."""


def share(text: str) -> float:
    """A share written as 80% or as 0.8; ValueError for what is no number."""
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


PERCENT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="SHARE",
    instance_from_str=lambda words: share(words[0]),
    is_instance=lambda value: isinstance(value, float),
    str_from_instance=lambda value: [str(value)],
)
"""Marks a share that may be written as a percentage."""

Seed = Annotated[int, Between(-(2**62), 2**62)]
Samples = Annotated[int, Between(0, 10_000)]
Words = Annotated[int, Between(0, 10**9)]
Streams = Annotated[int, Between(1, 100_000)]
Beam = Annotated[int, Between(1, 1000)]
Window = Annotated[int, Between(1, 10**6)]
Share = Annotated[float, Between(0, 1)]
Drop = Annotated[float, Between(0, 1, open="high"), PERCENT]
Rate = Annotated[float, Between(0, 1e6, open="low")]
Temperature = Annotated[float, Between(0, 1e6, open="low")]
Source = Annotated[str, Place()]


def check(command: object) -> None:
    """Raise ValueError, with one line that names the option, unless each can be used."""
    hints = get_type_hints(type(command), include_extras=True)
    for field in fields(command):  # pyright: ignore[reportArgumentType]
        marks = list(_marks(hints[field.name]))
        value = getattr(command, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            _check_value(field.name.replace("_", "-"), item, marks)


def check_needs(command: Any, option: str, needed: str, value: str = "") -> None:
    """Raise ValueError for an option that means nothing without another, unless it has its default."""
    defaults = {field.name: field.default for field in fields(command)}
    if getattr(command, option) != defaults[option] and not getattr(command, needed):
        name = option.replace("_", "-")
        raise ValueError(f"--{name} needs --{needed}{value and ' '}{value}.")


def check_places(arguments: list[str]) -> None:
    """Raise ValueError for an argument that names a place which the system cannot."""
    for argument in arguments:
        for text in {argument, argument.partition("=")[2]}:
            check_place(text)


def check_place(place: str | Path) -> None:
    """Raise ValueError for a path that no system call accepts, or of a user who does not exist."""
    text = str(place)
    if "\0" in text:
        raise ValueError(f"{text!r} has a NUL character, which no path can have.")
    expanded(text)


def check_input(path: Path) -> None:
    """Raise ValueError for a device, which may have no end, where a file is to be read."""
    if str(path) != "-" and path.exists():
        mode = os.stat(path).st_mode
        if stat.S_ISBLK(mode) or (
            stat.S_ISCHR(mode) and str(path) not in ("/dev/stdin", "/dev/tty")
        ):
            raise ValueError(f"{path} is a device; name a file.")


def output_folder(folder: Path, *names: str) -> None:
    """Make a folder for these files; ValueError if one of them may not be written there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder.")
    above = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    check_outside_runs(folder)
    check_writable(above / "any name")  # is it a place to write to at all?
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        check_output(folder / name)


def _marks(hint: Any) -> Iterator[Any]:
    """All that is said of a type besides the type, at any depth."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        if not isinstance(part, str):
            yield from _marks(part)


def _check_value(option: str, value: Any, marks: list[Any]) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(option, value, [mark for mark in marks if isinstance(mark, Between)])
    elif isinstance(value, str | Path):
        if isinstance(value, Path) or any(isinstance(mark, Place) for mark in marks):
            check_place(value)
        elif "\0" in value:
            raise ValueError(f"{option} = {value!r} has a NUL character; leave it out.")


def _check_number(option: str, value: float, bounds: list[Between]) -> None:
    if not -math.inf < value < math.inf:
        rules = bounds or [Between(-math.inf, math.inf)]
        low, high = _number(rules[0].low), _number(rules[0].high)
        raise ValueError(f"{option} = {value} must be a number between {low} and {high}.")
    for bound in bounds:
        if not bound.holds(value):
            raise ValueError(f"{option} = {_short(value)} {bound.rule(value)}.")


def _short(value: float) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**12 else f"{value:g}"
