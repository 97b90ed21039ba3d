"""`python -m tests.faults.campaign`: see the package's description."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.campaign import report, soak
from tests.faults.campaign.campaign import KINDS, Campaign

HERE = Path(__file__).resolve().parents[3]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["soak"]:
        return _soak(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=5000, help="how many to try")
    parser.add_argument("--only", choices=sorted(KINDS), help="one kind of fault")
    parser.add_argument("--repeat", help="one trial, by the name a failure was printed with")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: never")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try side by side")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    _common(parser)
    given = parser.parse_args(arguments)
    scratch, package = _scratch(given.scratch), given.package.resolve()
    start = time.monotonic()
    try:
        with Campaign(package, scratch, jobs=given.jobs, limit=given.limit) as campaign:
            if given.repeat:
                results = campaign.repeat(given.repeat, given.seed)
            else:
                kinds = [given.only] if given.only else list(KINDS)
                minutes, show = given.minutes or None, not given.json
                results = campaign.run(given.faults, given.seed, kinds, minutes=minutes, show=show)
    finally:
        if not given.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.monotonic() - start
    if given.json:
        print(report.as_json(results, given.seed, package, seconds))
    else:
        for line in report.failures(results, given.seed, package):
            print(line)
        if len(results) > 1:
            print("\n".join(["", *report.groups(results)]))
        print(f"\n{report.table(results)}\n")
        print(f"{len(results)} faults, {seconds:.0f} s, seed {given.seed}, {package}")
    return int(any(not result.outcome.good for result in results))


def _soak(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign soak")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of training")
    parser.add_argument("--every", type=int, default=200, help="mean steps between interruptions")
    parser.add_argument("--method", default="bbb")
    _common(parser)
    given = parser.parse_args(arguments)
    scratch = _scratch(given.scratch)
    try:
        return soak.run(
            given.package.resolve(), scratch, given.steps, given.every, given.method, given.seed
        )
    finally:
        if not given.keep:
            shutil.rmtree(scratch, ignore_errors=True)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--package", type=Path, default=HERE, help="the checkout to attack")
    parser.add_argument("--limit", type=float, default=20, help="seconds after which it hangs")
    parser.add_argument("--scratch", type=Path, help="folder for its files")
    parser.add_argument("--keep", action="store_true", help="keep them")


def _scratch(folder: Path | None) -> Path:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="campaign-", dir=folder)).resolve()


if __name__ == "__main__":
    sys.exit(main())
