"""What an undisturbed command does: texts, runs, answers and traces, for comparison."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.campaign.commands import NO_FAULT, Ended, Fault, Server

LINES, WORDS_A_LINE = 28, 7
WORDS = [*(f"w{index}" for index in range(16)), "naïve", "日本", "ß", "été"]

TINY = "--preset tiny --hidden 8 --layers 1 --epochs 2 --no-tensorboard"
OFTEN = "--batch-size 4 --unroll 8 --checkpoint-minutes 1e-6"  # a checkpoint after every step
SELDOM = (
    "--batch-size 1 --unroll 2"  # only after an epoch; more than 100 steps, so lines of steps too
)

SETUPS = {
    "lstm": f"--method lstm {TINY} {OFTEN}",
    "bbb": f"--method bbb {TINY} {OFTEN}",
    "sharpened": f"--method sharpened {TINY} {OFTEN}",
    "long": f"--method lstm {TINY} {SELDOM}",
}

COMPARED = ("metrics.jsonl", "weights.safetensors", "vocabulary.txt", "config.toml")
"""The files of a run that must be equal, byte for byte, after any interruption."""

TIMES = (1_700_000_000, 1_700_000_000)
"""When both texts were last modified: nothing can tell them apart by that."""


@dataclass
class Reference:
    """A finished run that was never disturbed, and its cache."""

    folder: Path
    trace: str
    """A letter for each file operation of its training."""
    seconds: float
    files: dict[str, bytes]
    names: set[str]
    """All files, relative to the folder."""
    answers: dict[str, str] = field(default_factory=dict)
    """What the reading commands print about it."""


class World:
    """A server, its texts, and the references, each made when first asked for."""

    def __init__(self, package: Path, folder: Path, *, limit: float = 20.0) -> None:
        folder = folder.resolve()
        self.package = package
        self.server = Server(package, folder, limit=limit)
        self.box = self.server.root
        self.run, self.cache = self.box / "run", self.box / "cache"
        self.texts = {"a": folder / "text.txt", "b": folder / "other" / "text.txt"}
        self._write_texts()
        self._references: dict[str, Reference] = {}
        self.peak = 0
        self._warm_up()

    def close(self) -> None:
        self.server.close()

    # ---------------------------------------------------------------- commands

    def train(self, setup: str, *, text: str = "a", seed: int = 0) -> list[str]:
        where = ["--data", str(self.texts[text]), "--run", str(self.run), "--seed", str(seed)]
        return ["train", *SETUPS[setup].split(), *where]

    def resume(self, setup: str) -> list[str]:
        # The time between checkpoints is no setting of a run.
        options = SETUPS[setup].split()
        often = options[-2:] if "--checkpoint-minutes" in options else []
        return ["train", "--resume", "--run", str(self.run), *often, "--no-tensorboard"]

    def read(self, command: str, other: Path | None = None) -> list[str]:
        """A reading command about the run."""
        run = str(self.run)
        return {
            "evaluate": ["evaluate", run, "--json"],
            "generate": ["generate", run, "--prompt", "w1 ß", "--words", "20", "--json"],
            "compare": ["compare", run, str(other), "--json"],
        }[command]

    # ---------------------------------------------------------------- the box

    def clear(self) -> None:
        """Empty the box: no run and no cache."""
        shutil.rmtree(self.box, ignore_errors=True)
        self.box.mkdir()
        self._write_texts()

    def fill(self, folder: Path) -> None:
        """Put a copy of a stored run and cache into the box."""
        self.clear()
        shutil.copytree(folder, self.box, dirs_exist_ok=True)

    def store(self, name: str) -> Path:
        """Keep what is in the box."""
        folder = self.server.folder / "stored" / name
        folder.parent.mkdir(exist_ok=True)
        shutil.copytree(self.box, folder)
        return folder

    def names(self) -> set[str]:
        return {str(p.relative_to(self.box)) for p in self.box.rglob("*") if not p.is_dir()}

    def compared(self) -> dict[str, bytes]:
        return {
            name: (self.run / name).read_bytes() for name in COMPARED if (self.run / name).is_file()
        }

    # ---------------------------------------------------------------- references

    def reference(self, setup: str, *, other: bool = False) -> Reference:
        """A finished run; `other`: of equal shape, on other text and from another seed."""
        name = f"{setup}-other" if other else setup
        if name not in self._references:
            self._references[name] = self._make_reference(setup, name, other)
        return self._references[name]

    def interrupted(self, setup: str) -> Path:
        """A stored run that was killed in its second epoch."""
        folder = self.server.folder / "stored" / f"{setup}-interrupted"
        if not folder.exists():
            trace = self.reference(setup).trace
            self.clear()
            self.server.run(self.train(setup), Fault("kill", round(0.8 * len(trace))))
            self.store(f"{setup}-interrupted")
        return folder

    def answer(self, setup: str, command: str, stored: Path) -> str:
        """What a reading command prints about an intact stored run, which the box holds afterwards."""
        key = f"{stored.name} {command}"
        reference = self.reference(setup)
        if key not in reference.answers:
            other = self.reference("lstm").folder / "run"
            self.fill(stored)
            argv = self.read(command, other)
            first, second = self.checked(argv), self.checked(argv)
            if first.out != second.out:
                raise RuntimeError(f"bayesrnn {command} is not repeatable: {first.out}")
            reference.answers[key] = first.out
        return reference.answers[key]

    def checked(self, argv: list[str], limit: float = 120) -> Ended:
        """Run a command that must succeed."""
        ended = self.server.run(argv, NO_FAULT, limit=limit)
        if ended.code != 0:
            raise RuntimeError(f"bayesrnn {' '.join(argv)}: exit {ended.code}\n{ended.err}")
        self.peak = max(self.peak, ended.peak)
        return ended

    def _make_reference(self, setup: str, name: str, other: bool) -> Reference:
        argv = self.train(setup, text="b" if other else "a", seed=7 if other else 0)
        self.clear()
        self.checked(argv)
        before = self.compared()
        self.clear()
        ended = self.checked(argv)
        if self.compared() != before:
            raise RuntimeError(f"training with {setup} is not repeatable.")
        return Reference(self.store(name), ended.trace, ended.seconds, before, self.names())

    # ---------------------------------------------------------------- preparations

    def _write_texts(self) -> None:
        """Two texts of equal length and shape: in the second, words have changed places.

        Written only if they are not as they should be: some faults change them.
        """
        random = Random(0)
        lines = [[random.choice(WORDS) for _ in range(WORDS_A_LINE)] for _ in range(LINES)]
        moved = dict(zip(WORDS, [*WORDS[5:10], *WORDS[:5], *WORDS[10:]], strict=True))
        for name, path in self.texts.items():
            words = lines if name == "a" else [[moved[word] for word in line] for line in lines]
            data = "".join(" ".join(line) + "\n" for line in words).encode()
            if not path.exists() or path.read_bytes() != data or path.stat().st_mtime != TIMES[1]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, TIMES)

    def _warm_up(self) -> None:
        """Have the server import what the commands need."""
        self.clear()
        argvs = [self.train("sharpened"), self.resume("sharpened")]
        self.server.preload([*argvs, *map(self.read, ("evaluate", "generate"))])
        self.server.preload([self.read("compare", self.run)])
