"""How a command is run: on the device it names, by one process or by all the ranks that torchrun started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from bayesrnn.cli.arguments import Between

SECONDS_TO_SPEAK = 3.0
"""How long a silent rank that fails stays, so that the first can say why."""


class Failed(Exception):
    """A failure that is not the user's, with the exit code of the command."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class OnDevice:
    """The options of a command that computes; under torchrun the first rank does all of it."""

    device: str = field(default="auto", kw_only=True)
    """Device to compute on: cpu, cuda, cuda:1 and so on, or mps; auto for the best there is."""


@dataclass(frozen=True)
class OnRanks(OnDevice):
    """The options of a command whose work the ranks of torchrun divide."""

    rank_timeout: Annotated[float, Between(1, 1e6)] = field(default=600.0, kw_only=True)
    """Seconds that a rank of torchrun may keep the others waiting before they give up."""


def begin() -> None:
    """Of the processes that torchrun starts on a machine only the first speaks, until all have met.

    What they say is one line: torch's own log of the network, with its stack of C++, is left out.
    """
    if "WORLD_SIZE" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if os.environ.get("LOCAL_RANK", "0") != "0":
        _mute()


def wait_for_the_first() -> None:
    """Give the rank that speaks time to, before this one ends: torchrun then ends them all."""
    if sys.stderr is not _voice[1] and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(SECONDS_TO_SPEAK)


def launch(options: object, work: Callable[[], None]) -> None:
    """Do a command's work where its options say."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and not isinstance(options, OnRanks) and os.environ.get("RANK") != "0":
        return None
    if not isinstance(options, OnDevice):
        return work()
    from bayesrnn import devices

    if not (several and isinstance(options, OnRanks)):
        devices.use(options.device)
        return work()
    from bayesrnn import ranks

    try:
        with ranks.joined(options.rank_timeout):
            try:
                _mute() if ranks.rank() else _unmute()
                ranks.agree(lambda: devices.use(options.device))
                work()
            except ranks.Elsewhere:
                raise SystemExit(2) from None
            except Exception:
                _unmute() if ranks.first_to_fail() else _mute()
                raise
    except ranks.Lost as error:
        raise Failed(str(error), 1) from None


_voice = (sys.stdout, sys.stderr)


def _mute() -> None:
    silence = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.stdout = sys.stderr = silence


def _unmute() -> None:
    sys.stdout, sys.stderr = _voice
