"""What counts as survived."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.campaign.commands import NO_FAULT, Ended, Fault
from tests.faults.campaign.world import Reference, World

VERDICTS = (
    "survived",
    "lost",  # work that was saved cannot be continued to the same end
    "silently wrong",  # exit 0 with other results than an undisturbed command
    "traceback",
    "hang",
    "memory",
    "unclear",  # it failed, but not with one clear line
    "litter",  # all is well, but temporary files stay for ever
)

MEMORY_ALLOWED = 500
"""MB that a disturbed command may take beyond an undisturbed one."""

_TRACES = ("Traceback (most recent call last)", "Fatal Python error", "panicked at")


@dataclass(frozen=True)
class Outcome:
    verdict: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.verdict == "survived"


SURVIVED = Outcome("survived")


class Failed(Exception):
    """A check that failed: ends a trial with its outcome."""

    def __init__(self, verdict: str, detail: str) -> None:
        self.outcome = Outcome(verdict, detail)


def check_manners(world: World, ended: Ended) -> None:
    """However a command ends: no hang, no memory taken, no traceback, and an error in one clear line."""
    what = " ".join(ended.argv[:2])
    if ended.hang:
        raise Failed("hang", f"{what}: no end after {world.server.limit:.0f} s")
    if ended.peak > world.peak + MEMORY_ALLOWED or "MemoryError" in ended.err:
        raise Failed("memory", f"{what}: {ended.peak} MB: {last_line(ended.err)}")
    if any(text in ended.err for text in _TRACES):
        raise Failed("traceback", f"{what}: {last_line(ended.err)}")
    if ended.code > 0 and ended.code not in (130, 143):
        lines = [line for line in ended.err.splitlines() if line.strip()]
        # Notices may come before the error.
        if not lines or len(lines) > 4 or not lines[-1].startswith("bayesrnn: "):
            raise Failed("unclear", f"{what}: exit {ended.code}: {' / '.join(lines)[:200]}")
    if ended.code < 0 and ended.code not in (-9, -15, -2):
        raise Failed("unclear", f"{what}: ended by signal {-ended.code}")


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def check_continues(world: World, setup: str, *, saved: bool, fault: Fault = NO_FAULT) -> None:
    """Continue the run in the box: it must end as if it had never been interrupted.

    If nothing was saved yet, it may refuse to resume, and must then start again in the same folder.
    """
    ended = world.server.run(world.resume(setup), fault)
    check_manners(world, ended)
    if ended.code < 0:  # killed once more
        ended = world.server.run(world.resume(setup))
        check_manners(world, ended)
    if ended.code != 0 and not saved:
        refusal = last_line(ended.err)
        ended = world.server.run(world.train(setup))
        check_manners(world, ended)
        if ended.code != 0:
            raise Failed("lost", f"neither resumes ({refusal}) nor starts ({last_line(ended.err)})")
    if ended.code != 0:
        raise Failed("lost", f"does not resume: exit {ended.code}: {last_line(ended.err)}")
    check_complete(world, world.reference(setup))


def check_complete(world: World, reference: Reference) -> None:
    """The box holds a finished run that equals the reference, and no other files."""
    check_equal(world, reference)
    left = world.names() - reference.names
    if left:
        raise Failed("litter", f"left behind: {', '.join(sorted(left))}")


def check_equal(world: World, reference: Reference) -> None:
    """The box holds a finished run that equals the reference."""
    found = world.compared()
    different = [name for name, data in reference.files.items() if found.get(name) != data]
    if different:
        raise Failed("silently wrong", f"exit 0, but {', '.join(different)} differ")


def checkpoint_exists(world: World) -> bool:
    """Whether training has saved anything."""
    return any(world.run.glob("checkpoint*.safetensors"))
