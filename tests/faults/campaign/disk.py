"""An operation fails: the disk is full, broken, not ours or read-only; once, or from then on."""

from __future__ import annotations

from random import Random

from tests.faults.campaign.commands import Fault
from tests.faults.campaign.kinds import Kind, Parts
from tests.faults.campaign.shim import ERRORS
from tests.faults.campaign.verdict import (
    check_continues,
    check_equal,
    check_manners,
    checkpoint_exists,
)
from tests.faults.campaign.world import SETUPS, World


def plan(world: World) -> list[Parts]:
    return [
        (setup, error, manner, str(number))
        for setup in SETUPS
        for number, letter in enumerate(world.reference(setup).trace, 1)
        for error, letters in ERRORS.items()
        if letter in letters
        for manner in ("once", "on")
    ]


def attempt(world: World, parts: Parts, random: Random) -> None:
    setup, error, manner, number = parts
    reference = world.reference(setup)
    world.clear()
    ended = world.server.run(world.train(setup), Fault(manner, int(number), error))
    check_manners(world, ended)
    if ended.code == 0:  # an error that can be tolerated
        check_equal(world, reference)
    check_continues(world, setup, saved=checkpoint_exists(world))


KIND = Kind("disk", 0.22, plan, attempt, lambda parts: f"disk: {parts[1]}")
