"""Damaged files of a run or of the cache: the right answer or a refusal, never a wrong answer."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random

from tests.faults.campaign.kinds import Kind, NoFault, Parts
from tests.faults.campaign.verdict import Failed, check_complete, check_manners
from tests.faults.campaign.world import World

SETUPS = ("lstm", "bbb", "sharpened")
LINES = ("line-lost", "line-doubled", "sorted", "digit")  # for text files only
BYTES = ("cut", "empty", "deleted", "zeros", "flip", "stretch", "appended", "swapped")
DAMAGES = (*BYTES, *LINES)
READING = ("evaluate", "generate", "compare")
UNKNOWN_SPEED = '"words_per_second": null'


def plan(world: World) -> list[Parts]:
    found: list[Parts] = []
    for setup in SETUPS:
        for state, stored in _states(world, setup).items():
            files = {_kind_of(p.relative_to(stored)): p for p in stored.rglob("*") if p.is_file()}
            for name, path in sorted(files.items()):
                found += _of_file(setup, state, name, path)
        found += [(setup, "interrupted", "text", "swapped", "resume", "0")]
    return found


def _of_file(setup: str, state: str, name: str, path: Path) -> list[Parts]:
    if path.name.startswith("."):  # locks and the like: no contents that count
        return []
    # The reading commands use no checkpoint; the cache is read again only by these.
    if name.startswith("cache:"):
        commands = ("evaluate", "resume", "train")
    elif name.startswith("run:checkpoint"):
        commands = ("resume",)
    else:
        commands = (*READING, "resume")
    binary = path.suffix not in (".txt", ".toml", ".jsonl", ".json")
    return [
        (setup, state, name, damage, command, "0")
        for damage in DAMAGES
        if not (binary and damage in LINES)
        for command in commands
    ]


def _kind_of(path: Path) -> str:
    """A file's path, without the keys that contents decide and without slashes."""
    return re.sub(r"[0-9a-f]{12,}", "KEY", ":".join(path.parts))


def _states(world: World, setup: str) -> dict[str, Path]:
    return {
        "finished": world.reference(setup).folder,
        "interrupted": world.interrupted(setup),
    }


def attempt(world: World, parts: Parts, random: Random) -> None:
    setup, state, file, damage, command, _ = parts
    stored = _states(world, setup)[state]
    answer = world.answer(setup, command, stored) if command in READING else ""
    other = world.reference(setup, other=True).folder
    world.fill(stored)
    if file == "text":
        world.texts["a"].write_bytes(world.texts["b"].read_bytes())
    else:
        _damage(_find(world.box, file, random), damage, _find(other, file, random), random)
    if command in READING:
        _check_answer(world, command, answer)
    else:
        _check_training(world, setup, command)


def _find(folder: Path, file: str, random: Random) -> Path:
    """A file of a kind: one of them, where there are several; a missing one, where there is none."""
    found = [p for p in sorted(folder.rglob("*")) if _kind_of(p.relative_to(folder)) == file]
    return random.choice(found) if found else folder / file


def _check_answer(world: World, command: str, answer: str) -> None:
    compared_with = world.reference("lstm").folder / "run"
    ended = world.server.run(world.read(command, compared_with))
    check_manners(world, ended)
    if ended.code != 0 or ended.out == answer:
        return
    if command == "compare" and ended.err.strip() and _is_part(ended.out, answer):
        return  # the damaged run is left out, with a notice
    unknown = ended.out.count(UNKNOWN_SPEED) > answer.count(UNKNOWN_SPEED)
    if command == "compare" and unknown and _without_speed(ended.out) == _without_speed(answer):
        return  # nothing but the speed is unknown, and said to be
    raise Failed("silently wrong", f"{command}: {ended.out.strip()[:150]}")


def _without_speed(rows: str) -> str:
    return re.sub(r'"words_per_second": [^,}]*', UNKNOWN_SPEED, rows)


def _is_part(out: str, answer: str) -> bool:
    """Whether the rows printed are some of the right ones."""
    try:
        return all(row in json.loads(answer) for row in json.loads(out))
    except (ValueError, TypeError):
        return False


def _check_training(world: World, setup: str, command: str) -> None:
    if command == "train":  # a new run with a damaged cache
        shutil.rmtree(world.run)
        argv = world.train(setup)
    else:
        argv = world.resume(setup)
    ended = world.server.run(argv)
    check_manners(world, ended)
    if ended.code == 0:
        check_complete(world, world.reference(setup))


# ---------------------------------------------------------------------- damages


def _damage(path: Path, damage: str, other: Path, random: Random) -> None:
    """Damage a file; NoFault if that leaves it as it was."""
    if not path.exists():
        raise NoFault
    if damage == "deleted":
        return path.unlink()
    old = path.read_bytes()
    new = (
        (other.read_bytes() if other.exists() else old)
        if damage == "swapped"
        else damaged(old, damage, random)
    )
    if new == old:
        raise NoFault
    path.write_bytes(new)
    return None


def damaged(data: bytes, damage: str, random: Random) -> bytes:
    """The bytes of a file after a damage; where, decides chance."""
    if damage in LINES:
        return _damaged_lines(data, damage, random)
    if not data or damage == "empty":
        return b""
    place = random.randrange(len(data))
    if damage == "cut":
        return data[:place]
    if damage == "zeros":
        return bytes(len(data))
    if damage == "flip":
        return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]
    if damage == "stretch":
        length = min(random.randint(1, 64), len(data) - place)
        return data[:place] + random.randbytes(length) + data[place + length :]
    if damage == "appended":
        return data + random.randbytes(random.randint(1, 64))
    raise ValueError(damage)


def _damaged_lines(data: bytes, damage: str, random: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    place = random.randrange(len(lines))
    if damage == "sorted":
        return b"".join(sorted(lines))
    if damage == "line-lost":
        return b"".join(lines[:place] + lines[place + 1 :])
    if damage == "line-doubled":
        return b"".join(lines[: place + 1] + lines[place:])
    digits = [match.start() for match in re.finditer(rb"\d", data)]  # one digit becomes another
    if not digits:
        return data
    at = random.choice(digits)
    return data[:at] + b"%d" % ((data[at] - 48 + random.randint(1, 9)) % 10) + data[at + 1 :]


KIND = Kind(
    "corrupt",
    0.35,
    plan,
    attempt,
    lambda parts: f"damaged: {parts[2].removeprefix('run:').replace(':', '/')}",
    endless=True,
)
