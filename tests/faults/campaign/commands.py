"""Commands run by the server: how they are started, disturbed and what came of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.campaign import shim

SERVER = Path(__file__).with_name("server.py")


@dataclass(frozen=True)
class Fault:
    """What happens at one of a command's file operations, counted from 1."""

    action: str = "count"
    at: int = 0
    name: str = ""
    """The error or signal, such as ENOSPC or SIGTERM."""

    def arm(self, root: Path) -> list[Any]:
        if self.action in ("once", "on"):
            value, operations = getattr(errno, self.name), shim.ERRORS[self.name]
        else:
            value, operations = (getattr(signal, self.name) if self.name else 0), ""
        return [str(root), shim.ACTIONS[self.action], self.at, int(value), operations]


NO_FAULT = Fault()


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    argv: list[str]
    code: int
    """The exit code, or minus the signal that ended it."""
    out: str
    err: str
    trace: str
    """A letter for each file operation; empty if the command was killed."""
    hang: bool
    seconds: float
    peak: int
    """Peak resident memory in MB."""
    memory: list[int] = field(default_factory=list)


class Server:
    """A server for one checkout, with a folder for its own files."""

    def __init__(self, package: Path, folder: Path, *, limit: float = 20.0) -> None:
        self.folder, self.limit = folder, limit
        self.root = folder / "box"
        """Where the commands write: the operations below it are counted."""
        folder.mkdir(parents=True, exist_ok=True)
        self._started: dict[int, tuple[list[str], Path]] = {}
        self._number = 0
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("BAYESRNN", "PYTHON"))},
            "PYTHONPATH": str(package),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "300",  # argument errors in boxes are not wrapped
            "LD_PRELOAD": str(shim.build(folder)),
        }
        # -P: the script's own folder is not on the path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        found = Path(self._read()["package"]).resolve().parent
        if found != package.resolve():
            raise RuntimeError(f"asked to attack {package}, but bayesrnn was found in {found}.")

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(10)
        if self._process.stdout:
            self._process.stdout.close()

    def preload(self, argvs: list[list[str]]) -> None:
        """Run commands once and import in the server whatever they imported."""
        for argv in argvs:
            pid = self.start(argv, modules=True)
            output = self._started[pid][1]
            ended = self.wait(pid, limit=120)
            if ended.code != 0:
                raise RuntimeError(f"bayesrnn {' '.join(argv)}: exit {ended.code}\n{ended.err}")
            names = output.with_suffix(".modules")
            self._ask(do="preload", names=json.loads(names.read_text()))
            names.unlink()
        self._ask(do="warm", commands=sorted({argv[0] for argv in argvs}))

    def run(
        self,
        argv: list[str],
        fault: Fault = NO_FAULT,
        *,
        then: tuple[float, int] | None = None,
        limit: float | None = None,
        sample: float = 0.0,
    ) -> Ended:
        """Run a command to its end; `then`: a signal to send after some seconds."""
        return self.wait(self.start(argv, fault), then=then, limit=limit, sample=sample)

    def start(self, argv: list[str], fault: Fault = NO_FAULT, *, modules: bool = False) -> int:
        self._number += 1
        output = self.folder / f"output-{self._number}"
        pid = self._ask(
            do="start",
            argv=argv,
            cwd=str(self.folder),
            env={"BAYESRNN_CACHE": str(self.root / "cache")},
            output=str(output),
            arm=fault.arm(self.root),
            modules=modules,
        )
        self._started[pid] = (argv, output)
        return pid

    def signal(self, pid: int, number: int) -> None:
        self._ask(do="signal", pid=pid, number=number)

    def wait_for_stop(self, pid: int, limit: float) -> Ended | None:
        """Wait until a child has stopped itself (None), or has ended; None too if it is still running."""
        found = self._ask(do="wait", pid=pid, limit=limit, then=[], stopped=True, sample=0)
        return self._ended(pid, found) if "code" in found else None

    def wait(
        self,
        pid: int,
        *,
        then: tuple[float, int] | None = None,
        limit: float | None = None,
        sample: float = 0.0,
    ) -> Ended:
        found = self._ask(
            do="wait",
            pid=pid,
            limit=limit or self.limit,
            then=list(then or ()),
            stopped=False,
            sample=sample,
        )
        return self._ended(pid, found)

    def _ended(self, pid: int, found: dict[str, Any]) -> Ended:
        argv, output = self._started.pop(pid)
        texts = {}
        for name in ("out", "err", "trace"):
            path = output.with_suffix(f".{name}")
            texts[name] = (
                path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            )
            path.unlink(missing_ok=True)
        return Ended(argv, **texts, **found)

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the campaign's server died: exit {self._process.wait()}.")
        return json.loads(line)
