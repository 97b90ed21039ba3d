"""Which method learns faster: runs of `bayesrnn mnist`, averaged over seeds for each method.

    python benchmarks/race.py runs/bbb-0 runs/bbb-1 runs/sharpened-0 runs/sharpened-1 --out race.png

Times are the training times recorded by each run, so all runs must have been made on the same machine under
the same load.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean

from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.digits.comparison import epochs_of
from bayesrnn.training.experiment import experiment, open_run

MEASURES = {"valid_error": "validation error (%)", "free_energy": "free energy (nats/example)"}
CLOCKS = {"epoch": "epoch", "seconds": "training time (s)"}
STYLES = (
    {"color": "k", "marker": "s"},
    {"color": "0.5", "marker": "o", "ls": "--"},
    {"color": "0.3", "marker": "^", "ls": ":"},
)
Curves = dict[str, list[list[dict[str, float]]]]


def read(folders: list[Path]) -> Curves:
    """The epochs of each run, by method."""
    curves: Curves = defaultdict(list)
    for folder in folders:
        run = open_run(folder, experiment("mnist"))
        curves[run.config.method].append(epochs_of(run))
    return curves


def average(runs: list[list[dict[str, float]]], name: str) -> list[float]:
    scale = 100 if name == "valid_error" else 1
    return [scale * mean(line[name] for line in epoch) for epoch in zip(*runs, strict=False)]


def first_below(runs: list[list[dict[str, float]]], clock: str, error: float) -> str:
    """When the validation error first fell below a value, averaged over runs."""
    found = [next((r[clock] for r in run if r["valid_error"] < error), None) for run in runs]
    reached = [value for value in found if value is not None]
    return f"{mean(reached):.1f}" if len(reached) == len(runs) else "-"


def draw(curves: Curves, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.4))
    axes = figure.subplots(2, 2)
    for row, (measure, label) in enumerate(MEASURES.items()):
        for column, (clock, x_label) in enumerate(CLOCKS.items()):
            axis = axes[row][column]
            for (method, runs), style in zip(curves.items(), STYLES, strict=False):
                at, every = average(runs, clock), max(1, len(runs[0]) // 10)
                axis.plot(at, average(runs, measure), label=method, markevery=every, **style)
                for run in runs:
                    own = average([run], measure)
                    axis.plot(average([run], clock), own, color=style["color"], lw=0.4, alpha=0.6)
            axis.set_xlabel(x_label)
            axis.set_ylabel(label)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
            axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--errors", type=float, nargs="+", default=[0.03, 0.02, 0.018])
    parser.add_argument("--out", type=Path, help="where to draw the curves")
    options = parser.parse_args()
    try:
        curves = read(options.runs)
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for method, runs in curves.items():
        best = [min(line["valid_error"] for line in run) for run in runs]
        seconds = mean(run[-1]["seconds"] / len(run) for run in runs)
        row = [method, str(len(runs)), f"{seconds:.2f}", " ".join(f"{b:.2%}" for b in best)]
        for clock in CLOCKS:
            row += [first_below(runs, clock, error) for error in options.errors]
        rows.append([*row, f"{average(runs, 'free_energy')[-1]:.3f}"])
    marks = [f"below {error:.1%}, {clock}" for clock in CLOCKS for error in options.errors]
    headings = ["method", "seeds", "s/epoch", "best validation error", *marks, "free energy, end"]
    print(markdown_table(headings, rows))
    if options.out:
        draw(curves, options.out)
        print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
