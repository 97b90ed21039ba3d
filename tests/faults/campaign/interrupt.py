"""Signals, before a file operation or at a random time: the run must be resumable to the same bytes.

SIGTERM and SIGINT save what was done since the last checkpoint; of SIGKILL only that the run resumes.
"""

from __future__ import annotations

import signal
from random import Random

from tests.faults.campaign.commands import Fault
from tests.faults.campaign.kinds import Kind, Parts
from tests.faults.campaign.verdict import (
    Failed,
    check_continues,
    check_manners,
    checkpoint_exists,
)
from tests.faults.campaign.world import SETUPS, World

SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL")


def plan(world: World) -> list[Parts]:
    found: list[Parts] = []
    for setup in SETUPS:
        operations = len(world.reference(setup).trace)
        numbers = range(1, operations + 1, 1 if setup == "long" else 4)
        for name in SIGNALS[:2]:
            found += [(setup, name, f"operation-{number}", "0") for number in numbers]
        for name in SIGNALS:
            found += [(setup, name, f"time-{number}", "0") for number in range(8)]
    return found


def attempt(world: World, parts: Parts, random: Random) -> None:
    setup, name, when, _ = parts
    reference = world.reference(setup)
    where, _, number = when.partition("-")
    world.clear()
    if where == "operation":
        ended = world.server.run(world.train(setup), Fault("signal", int(number), name))
    else:
        delay = random.uniform(0, reference.seconds)
        ended = world.server.run(world.train(setup), then=(delay, getattr(signal, name)))
    check_manners(world, ended)
    saved = checkpoint_exists(world)
    unfinished = world.compared() != reference.files
    if saved and unfinished and ended.code in (-15, -2):
        raise Failed("lost", f"{name} ended training without saving the steps since a checkpoint")
    if name != "SIGKILL" and ended.code not in (0, 130, 143, -15, -2):
        raise Failed("unclear", f"{name}: exit {ended.code}")
    if ended.code == 0 and unfinished:
        raise Failed("silently wrong", f"{name}: exit 0, but not finished")
    check_continues(world, setup, saved=saved)


KIND = Kind("interrupt", 0.08, plan, attempt, lambda parts: f"signal: {parts[1]}", endless=True)
