"""Runs commands of one checkout of bayesrnn: imports everything once, then forks a child for each command.

A script of its own, not a module of the campaign: its Python path leads to the checkout that is attacked. It
reads one JSON request a line and answers each with one line.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from typing import Any

ADDRESS_SPACE = 6 << 30
"""How much a child may map beyond what it inherits: a bomb then fails instead of taking the machine."""


def main() -> None:
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    import bayesrnn.cli

    print(json.dumps({"package": os.path.dirname(bayesrnn.__file__)}), file=answers, flush=True)
    running = Children()
    for line in requests:
        request = json.loads(line)
        answer = getattr(running, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers, flush=True)


class Children:
    """The requests, one method each."""

    def preload(self, names: list[str]) -> list[str]:
        """Import modules, so that no child has to; without torch's threads, which do not survive a fork."""
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:
                continue
        return sorted(sys.modules)

    def warm(self, commands: list[str]) -> None:
        """Fill the caches that every command fills again: of the argument parser, and of torch's LSTM."""
        import torch

        from bayesrnn.cli import main

        output = sys.stdout
        with open(os.devnull, "w") as sys.stdout:
            for command in commands:
                with contextlib.suppress(SystemExit):
                    main([command, "--help"])
        sys.stdout = output
        with torch.no_grad():  # without gradients no thread is started
            torch.nn.LSTM(8, 8)(torch.zeros(8, 4, 8))
        gc.collect()
        gc.freeze()

    def start(self, **request: Any) -> int:
        pid = os.fork()
        if pid == 0:
            _child(**request)
        return pid

    def signal(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def wait(
        self, pid: int, limit: float, then: list[Any], stopped: bool, sample: float
    ) -> dict[str, Any]:
        """Wait for a child's end (or stop); `then` is a delay and a signal to send after it, or empty."""
        start, memory = time.monotonic(), []
        handle, hang = os.pidfd_open(pid), False
        while True:
            ended, status, usage = os.wait4(pid, os.WNOHANG | (os.WUNTRACED if stopped else 0))
            if ended:
                break
            now = time.monotonic() - start
            if then and now >= then[0]:
                os.kill(pid, then[1])
                then = []
            if now >= limit:
                if stopped:
                    os.close(handle)
                    return {"running": True}
                hang = True
                os.kill(pid, signal.SIGKILL)
            wake = min(limit, then[0]) - now if then else limit - now
            if stopped:
                wake = min(wake, 0.005)  # a stop does not wake the handle
            if sample:
                memory.append(_resident(pid))
                wake = min(wake, sample)
            select.select([handle], [], [], max(wake, 0.0005))
        os.close(handle)
        if os.WIFSTOPPED(status):
            return {"stopped": True}
        return {
            "code": os.waitstatus_to_exitcode(status),
            "hang": hang,
            "seconds": time.monotonic() - start,
            "peak": usage.ru_maxrss >> 10,
            "memory": memory,
        }


def _child(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    output: str,
    arm: list[Any],
    modules: bool,
) -> None:
    """Be the command: never returns."""
    code = 1
    try:
        for number, name in [(1, "out"), (2, "err")]:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            handle = os.open(f"{output}.{name}", flags)
            os.dup2(handle, number)
            os.close(handle)
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = ["bayesrnn", *argv]
        space = _mapped() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _command(argv, arm, output)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            if modules:
                with open(f"{output}.modules", "w") as file:
                    json.dump(sorted(sys.modules), file)
        finally:
            os._exit(code)


def _command(argv: list[str], arm: list[Any], output: str) -> int:
    from bayesrnn.cli import main

    library = ctypes.CDLL(None)
    library.campaign_disarm.restype = ctypes.c_char_p
    folder, action, number, value, operations = arm
    library.campaign_arm(folder.encode(), action, ctypes.c_long(number), value, operations.encode())
    try:
        main(argv)
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    finally:
        trace = library.campaign_disarm()
        with open(f"{output}.trace", "wb") as file:
            file.write(trace)


def _mapped() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _resident(pid: int) -> int:
    """The resident memory of a process in MB; 0 when it has just ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() >> 20
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    main()
