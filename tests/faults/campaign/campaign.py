"""The whole campaign: which trials, tried by one or more workers, each with a world of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from tests.faults.campaign import corrupt, crash, disk, interrupt, kinds, pair
from tests.faults.campaign.kinds import Kind, Result
from tests.faults.campaign.world import World

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (crash.KIND, disk.KIND, corrupt.KIND, interrupt.KIND, pair.KIND)
}


class Campaign:
    """Worlds to try faults in; a context manager."""

    def __init__(self, package: Path, scratch: Path, *, jobs: int = 1, limit: float = 20.0) -> None:
        folders = [scratch / f"worker-{number}" for number in range(jobs)]
        with ThreadPoolExecutor(jobs) as pool:
            self.worlds = list(pool.map(lambda f: World(package, f, limit=limit), folders))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for world in self.worlds:
            world.close()

    def choose(self, faults: int, seed: int, names: Sequence[str]) -> list[str]:
        """The trials of a campaign, mixed; what is left over by kinds with few trials goes to the others."""
        whole = sum(KINDS[name].share for name in names)
        endless_last = sorted((KINDS[name] for name in names), key=lambda kind: kind.endless)
        chosen: list[str] = []
        for number, kind in enumerate(endless_last):
            last = number == len(endless_last) - 1
            count = faults - len(chosen) if last else round(faults * kind.share / whole)
            chosen += kinds.choose(kind, self.worlds[0], count, seed)
            # A kind that has too few leaves the rest of its share to the last one.
        return chosen

    def run(
        self,
        faults: int,
        seed: int,
        names: Sequence[str] = tuple(KINDS),
        *,
        minutes: float | None = None,
        show: bool = False,
    ) -> list[Result]:
        """Try some faults of some kinds; with a limit on time, as many as fit, all kinds alike."""
        trials = self.choose(faults, seed, names)
        if minutes is not None:
            kinds.Random(seed).shuffle(trials)
        return self.attempt(trials, seed, minutes=minutes, show=show)

    def repeat(self, trial: str, seed: int) -> list[Result]:
        return self.attempt([trial], seed)

    def attempt(
        self, trials: Sequence[str], seed: int, *, minutes: float | None = None, show: bool = False
    ) -> list[Result]:
        queue: SimpleQueue[str] = SimpleQueue()
        for trial in trials:
            queue.put(trial)
        start, results = time.monotonic(), []

        def work(world: World) -> None:
            while minutes is None or time.monotonic() - start < 60 * minutes:
                try:
                    trial = queue.get_nowait()
                except Empty:
                    return
                result = kinds.attempt(KINDS[trial.split("/")[0]], world, trial, seed)
                if result is not None:
                    results.append(result)
                if show and result is not None and len(results) % 250 == 0:
                    _show(results, time.monotonic() - start)

        with ThreadPoolExecutor(len(self.worlds)) as pool:
            for done in [pool.submit(work, world) for world in self.worlds]:
                done.result()
        return sorted(results, key=lambda result: result.trial)


def _show(results: Sequence[Result], seconds: float) -> None:
    failed = sum(not result.outcome.good for result in results)
    text = f"{len(results)} tried, {failed} failed, {len(results) / seconds:.1f} a second"
    print(text, file=sys.stderr, flush=True)
