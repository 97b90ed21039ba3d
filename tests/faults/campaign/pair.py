"""Two trainers in one folder at once: one is refused, and nothing is damaged.

The first is stopped before one of its file operations until the second has ended.
"""

from __future__ import annotations

import signal
from random import Random

from tests.faults.campaign.commands import Ended, Fault
from tests.faults.campaign.kinds import Kind, NoFault, Parts
from tests.faults.campaign.verdict import (
    Failed,
    check_complete,
    check_continues,
    check_manners,
    checkpoint_exists,
    last_line,
)
from tests.faults.campaign.world import World

SETUPS = ("lstm", "bbb")
PATIENCE = 3.0
"""Seconds after which the first goes on even if the second has not ended: it may be waiting for a lock."""


def plan(world: World) -> list[Parts]:
    found: list[Parts] = []
    for setup in SETUPS:
        for number in range(1, len(world.reference(setup).trace) + 1):
            found += [(setup, how, str(number)) for how in ("both-new", "second-resumes")]
        found += [(setup, "both-resume", str(number)) for number in range(1, 40)]
    return found


def attempt(world: World, parts: Parts, random: Random) -> None:
    setup, how, number = parts
    world.reference(setup)
    if how == "both-resume":
        world.fill(world.interrupted(setup))
    else:
        world.clear()
    new, resume = world.train(setup), world.resume(setup)
    first, second = {
        "both-new": (new, new),
        "second-resumes": (new, resume),
        "both-resume": (resume, resume),
    }[how]
    ends = _side_by_side(world, first, second, int(number))
    for ended in ends:
        check_manners(world, ended)
    codes = [ended.code for ended in ends]
    # A resumed run that was stopped before it touched the folder may find it finished: that is no overlap,
    # and then both succeed, with the right files.
    if codes == [0, 0] and how != "both-resume":
        raise Failed("silently wrong", "both trained in one folder, and both ended with exit 0")
    if 0 in codes:
        return check_complete(world, world.reference(setup))
    if checkpoint_exists(world):
        raise Failed("lost", f"both failed: {'; '.join(last_line(e.err) for e in ends)}")
    return check_continues(world, setup, saved=False)


def _side_by_side(world: World, first: list[str], second: list[str], at: int) -> list[Ended]:
    server = world.server
    stopped = server.start(first, Fault("stop", at))
    ended = server.wait_for_stop(stopped, server.limit)
    if ended is not None:
        raise NoFault
    other = server.start(second)
    second_end = server.wait_for_stop(other, PATIENCE)
    server.signal(stopped, signal.SIGCONT)
    first_end = server.wait(stopped)
    return [first_end, second_end or server.wait(other)]


KIND = Kind("pair", 0.05, plan, attempt, lambda parts: f"two trainers: {parts[1]}")
