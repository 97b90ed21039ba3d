"""Learning curves that outlive their runs: records them in a table, and draws the table.

    python benchmarks/curves.py docs/curves.csv --add "bbb, 650 units" runs/medium
    python benchmarks/curves.py docs/curves.csv --out docs/images/learning-curves.png

The table has a row for each epoch: the name of the run, validation perplexity, and training perplexity where
it is known. `--add` replaces the rows of that name.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from bayesrnn.files import write_text
from bayesrnn.report.figures import learning_curves, save
from bayesrnn.tasks.language.trained import open_language_run

COLUMNS = ("run", "epoch", "validation", "training")
Curves = dict[str, list[dict[str, float]]]


def read(path: Path) -> Curves:
    """The epochs of each run, in the order of the table."""
    curves: Curves = {}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path}: the columns must be {', '.join(COLUMNS)}.")
        for row in reader:
            line = {name: float(row[name]) for name in COLUMNS[1:] if row[name]}
            curves.setdefault(row["run"], []).append(line)
    return curves


def write(curves: Curves, path: Path) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for name, lines in curves.items():
        for line in lines:
            rows.writerow([name, *(f"{line[c]:g}" if c in line else "" for c in COLUMNS[1:])])
    write_text(path, text.getvalue())


def epochs_of(folder: Path) -> list[dict[str, float]]:
    names = {"epoch": "epoch", "validation": "valid_perplexity", "training": "train_perplexity"}
    lines = open_language_run(folder).read_metrics("epoch")
    if not lines:
        raise ValueError(f"{folder} has no finished epoch.")
    return [{ours: line[theirs] for ours, theirs in names.items()} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--add", nargs=2, metavar=("NAME", "RUN"), help="record a run")
    parser.add_argument("--out", type=Path, help="where to draw the curves")
    options = parser.parse_args()
    try:
        curves = read(options.table) if options.table.exists() or not options.add else {}
        if options.add:
            name, folder = options.add
            curves[name] = epochs_of(Path(folder))
            write(curves, options.table)
            print(f"wrote {options.table}: {name}, {len(curves[name])} epochs")
        if options.out:
            figure = learning_curves(curves, valid="validation", label="validation perplexity")
            print(f"wrote {save(figure, options.out)}")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
