"""A long training that is interrupted again and again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from random import Random

from tests.faults.campaign.commands import Ended
from tests.faults.campaign.verdict import Failed, check_manners, checkpoint_exists, last_line
from tests.faults.campaign.world import SETUPS, TINY, World

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
STEPS_AN_EPOCH = 104  # about; what the text and the sizes below give
START = 0.1  # seconds until a command trains, at least
MEMORY_GROWTH_ALLOWED = 16  # MB


def run(package: Path, scratch: Path, steps: int, every: int, method: str, seed: int) -> int:
    """Print what happened; 1 if the end differs from an uninterrupted run's, or memory grows."""
    epochs = max(2, round(steps / STEPS_AN_EPOCH))
    tiny = TINY.replace("--epochs 2", f"--epochs {epochs}")
    # A checkpoint every 0.1 s, for a few dozen steps: whatever the signal, some progress is kept.
    sizes = "--batch-size 1 --unroll 2 --lr 0.1 --checkpoint-minutes 0.0016"
    SETUPS["soak"] = f"--method {method} {tiny} {sizes}"
    world = World(package, scratch / "soak", limit=60 + steps * 0.05)
    try:
        return _soak(world, every, Random(seed))
    finally:
        world.close()


def _soak(world: World, every: int, random: Random) -> int:
    world.clear()
    whole = world.server.run(world.train("soak"), sample=0.05)
    if whole.code != 0:
        print(f"the uninterrupted run failed: {last_line(whole.err)}")
        return 1
    world.peak = whole.peak
    reference = world.compared()
    steps = _steps_of(reference["metrics.jsonl"])
    grown = _report_memory(whole, steps)

    world.clear()
    seconds_a_step = whole.seconds / steps
    counts = dict.fromkeys(SIGNALS, 0)
    legs = 0
    while True:
        legs += 1
        resumed = checkpoint_exists(world)
        argv = world.resume("soak") if resumed else world.train("soak")
        name = random.choice(SIGNALS)
        # The machine is faster at times and slower at others: a leg is shorter when too few were interrupted.
        behind = sum(counts.values()) < _steps_of(_metrics(world)) / every
        mean = every * seconds_a_step * (0.5 if behind else 1.5)
        delay = START + random.expovariate(1 / mean)
        ended = world.server.run(argv, then=(delay, getattr(signal, name)))
        try:
            check_manners(world, ended)
        except Failed as failed:
            return _failed(f"{failed.outcome.verdict}: {failed.outcome.detail}", legs)
        if ended.code == 0:
            break
        if ended.code not in (-9, -15, -2, 130, 143):
            return _failed(f"exit {ended.code}: {last_line(ended.err)}", legs)
        counts[name] += 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{steps} steps with {sum(counts.values())} interruptions: {said}")
    different = [name for name, data in reference.items() if world.compared().get(name) != data]
    if different:
        return _failed(f"{', '.join(different)} differ from the uninterrupted run", legs)
    print("final bytes equal to the uninterrupted run")
    return int(grown)


def _report_memory(ended: Ended, steps: int) -> bool:
    """Print the resident memory of the uninterrupted run; True if it grew."""
    settled = [size for size in ended.memory[len(ended.memory) // 20 :] if size]
    tenth = max(1, len(settled) // 10)
    first, last = max(settled[:tenth]), max(settled[-tenth:])
    speed = steps / ended.seconds
    print(f"uninterrupted: {steps} steps, {ended.seconds:.0f} s, {speed:.0f} steps a second")
    print(f"resident memory: {first} MB at first, {last} MB at last, {max(settled)} MB at most")
    return last - first > MEMORY_GROWTH_ALLOWED


def _metrics(world: World) -> bytes:
    path = world.run / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def _steps_of(metrics: bytes) -> int:
    """The step of the last whole line."""
    lines = metrics[: metrics.rfind(b"\n") + 1].splitlines()
    return json.loads(lines[-1])["step"] if lines else 0


def _failed(why: str, legs: int) -> int:
    print(f"FAILED in leg {legs}: {why}")
    return 1
