"""The table of a campaign, and the failures with what repeats them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.campaign.kinds import Result
from tests.faults.campaign.verdict import VERDICTS


def counts(results: Sequence[Result]) -> dict[str, Counter[str]]:
    """How often each verdict fell, by row, and in total."""
    rows: dict[str, Counter[str]] = {}
    for result in sorted(results, key=lambda r: r.row):
        rows.setdefault(result.row, Counter())[result.outcome.verdict] += 1
    rows["total"] = Counter(result.outcome.verdict for result in results)
    return rows


def table(results: Sequence[Result]) -> str:
    """The table in Markdown."""
    lines = [["fault", "tried", *VERDICTS]]
    for row, found in counts(results).items():
        cells = [str(found[verdict] or "·") for verdict in VERDICTS]
        lines.append([row, str(found.total()), *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )


def failures(results: Sequence[Result], seed: int, package: Path) -> list[str]:
    """For each failure what happened and the command that repeats it."""
    return [
        f"{result.outcome.verdict}: {result.outcome.detail}\n"
        f"    python -m tests.faults.campaign --seed {seed} --package {package} --repeat {result.trial}"
        for result in results
        if not result.outcome.good
    ]


def groups(results: Sequence[Result]) -> list[str]:
    """Failures of one row with the same message but for numbers and paths, counted, with one example."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if not result.outcome.good:
            message = re.sub(r"(/\S+/)|\.(tmp|bayesrnn-)\w+|[\d.]+", "#", result.outcome.detail)[
                :60
            ]
            found.setdefault((result.row, result.outcome.verdict, message), []).append(result)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [
        f"{len(same):5d} times {row}: {verdict}: {same[0].outcome.detail[:160]}  ({same[0].trial})"
        for (row, verdict, _), same in ordered
    ]


def as_json(results: Sequence[Result], seed: int, package: Path, seconds: float) -> str:
    return json.dumps(
        {
            "package": str(package),
            "seed": seed,
            "seconds": round(seconds, 1),
            "tried": len(results),
            "failed": sum(not result.outcome.good for result in results),
            "table": {row: dict(found) for row, found in counts(results).items()},
            "failures": [
                {
                    "trial": result.trial,
                    "verdict": result.outcome.verdict,
                    "detail": result.outcome.detail,
                }
                for result in results
                if not result.outcome.good
            ],
        }
    )
