"""A kind of fault: which trials there are, and how one is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.faults.campaign.verdict import SURVIVED, Failed, Outcome
from tests.faults.campaign.world import World

Parts = tuple[str, ...]
"""The parts of a trial's name after its kind; with the seed they decide everything about it."""


class NoFault(Exception):
    """The trial turned out to disturb nothing: it does not count."""


@dataclass(frozen=True)
class Kind:
    name: str
    share: float
    """Its share of a campaign."""
    plan: Callable[[World], list[Parts]]
    """All its trials. Where chance has a part in a trial, the last part is a number to be counted up."""
    attempt: Callable[[World, Parts, Random], None]
    """Try one; raises Failed or NoFault."""
    row: Callable[[Parts], str]
    """The row of the table that a trial belongs to."""
    endless: bool = False
    """Whether chance has a part in its trials."""


@dataclass(frozen=True)
class Result:
    trial: str
    row: str
    outcome: Outcome


def choose(kind: Kind, world: World, count: int, seed: int) -> list[str]:
    """A seeded choice of `count` trials: all of them before any is repeated."""
    planned = kind.plan(world)
    Random(f"{seed} {kind.name}").shuffle(planned)
    chosen = planned[:count]
    repeat = 1
    while kind.endless and planned and len(chosen) < count:
        chosen += [(*parts[:-1], str(repeat)) for parts in planned[: count - len(chosen)]]
        repeat += 1
    return ["/".join((kind.name, *parts)) for parts in chosen]


def attempt(kind: Kind, world: World, trial: str, seed: int) -> Result | None:
    """Try one trial; None if it disturbed nothing."""
    parts = tuple(trial.split("/")[1:])
    try:
        kind.attempt(world, parts, Random(f"{seed} {trial}"))
        outcome = SURVIVED
    except Failed as failed:
        outcome = failed.outcome
    except NoFault:
        return None
    return Result(trial, kind.row(parts), outcome)
