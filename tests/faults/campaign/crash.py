"""Killed before a file operation: the process ends, half a write is done, or the power fails.

A power cut loses what was not flushed: each file is cut to its length at its last fsync.
"""

from __future__ import annotations

import shutil
from random import Random

from tests.faults.campaign.commands import Fault
from tests.faults.campaign.kinds import Kind, NoFault, Parts
from tests.faults.campaign.verdict import (
    Failed,
    check_continues,
    check_manners,
    checkpoint_exists,
    last_line,
)
from tests.faults.campaign.world import SETUPS, World

MANNERS = ("kill", "torn", "power", "twice")  # twice: the resumed run is killed too
READING = "evaluate"


def plan(world: World) -> list[Parts]:
    found: list[Parts] = []
    for setup in SETUPS:
        trace = world.reference(setup).trace
        for manner in MANNERS:
            found += [
                (setup, manner, str(number))
                for number, letter in enumerate(trace, 1)
                if manner != "torn" or letter == "w"
            ]
    for number in range(1, 1 + len(_reading_trace(world))):
        found += [(READING, manner, str(number)) for manner in ("kill", "power")]
    return found


def attempt(world: World, parts: Parts, random: Random) -> None:
    setup, manner, number = parts
    fault = Fault("kill" if manner == "twice" else manner, int(number))
    if setup == READING:
        return _attempt_reading(world, fault)
    world.reference(setup)
    world.clear()
    ended = world.server.run(world.train(setup), fault)
    if ended.code != -9:
        check_manners(world, ended)
        raise NoFault
    again = Fault("kill", random.randint(1, 30)) if manner == "twice" else Fault()
    check_continues(world, setup, saved=checkpoint_exists(world), fault=again)
    return None


def _reading_trace(world: World) -> str:
    _cold(world)
    return world.checked(world.read("evaluate")).trace


def _attempt_reading(world: World, fault: Fault) -> None:
    """Kill `evaluate` while it prepares its text; the next one must give the right answer."""
    answer = world.answer("bbb", "evaluate", world.reference("bbb").folder)
    _cold(world)
    if world.server.run(world.read("evaluate"), fault).code != -9:
        raise NoFault
    ended = world.server.run(world.read("evaluate"))
    check_manners(world, ended)
    if ended.code != 0:
        raise Failed("lost", f"evaluate does not recover: {last_line(ended.err)}")
    if ended.out != answer:
        raise Failed("silently wrong", f"{ended.out.strip()} instead of {answer.strip()}")
    left = world.names() - world.reference("bbb").names
    if left:
        raise Failed("litter", f"left behind: {', '.join(sorted(left))}")


def _cold(world: World) -> None:
    """A finished run, and no cache."""
    world.fill(world.reference("bbb").folder)
    shutil.rmtree(world.cache)


KIND = Kind("crash", 0.30, plan, attempt, lambda parts: f"crash: {parts[1]}")
