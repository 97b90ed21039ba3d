"""`bayesrnn sweep`: a search of hyper-parameters that many workers share."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from bayesrnn.cli.arguments import Between, Seed, Source, output_folder
from bayesrnn.cli.console import note, one_line, show, show_json
from bayesrnn.cli.launch import OnDevice
from bayesrnn.cli.train import stopped_by_signals
from bayesrnn.cli.training_output import SECONDS_BETWEEN_LINES, duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from bayesrnn.sweep.results import Results
    from bayesrnn.sweep.space import Params
    from bayesrnn.sweep.study import SharedStudy, Slot
    from bayesrnn.sweep.worker import Listener
    from bayesrnn.training.experiment import Experiment
    from bayesrnn.training.loop import Progress, Trainer

SHOWN = 10
"""Trials in the table that is printed; the file has all."""


@dataclass(frozen=True)
class Sweep(OnDevice):
    """Search hyper-parameters by many trials, with as many workers as are started.

    Start the same command several times, also on other machines, to share the work.
    """

    space: Positional[Source]
    """What to search: a TOML file (docs/sweeps.md), or paper or priors, which come with bayesrnn."""
    data: Source | None = None
    """Data to train on; by default those of the space."""
    folder: Source = ""
    """Folder for the trials' runs and the results; by default sweeps/NAME."""
    storage: Source = ""
    """Journal file, or URL of a database, that all workers share; by default journal.log in the folder."""
    trials: Annotated[int, Between(0, 10_000)] = 0
    """Number of trials, which may grow when a sweep is continued; 0 for that of the space."""
    seed: Seed = 0
    """Random seed of the search; each trial trains with the seed of its settings."""
    dead_after: Annotated[float, Between(0.5, 1e6)] = 120.0
    """Seconds without a sign of life after which a worker counts as dead, and its trial goes to another."""
    json: bool = False
    """Print only the results, as JSON."""

    def run(self) -> None:
        from bayesrnn.memory import keep_memory
        from bayesrnn.report.extras import need
        from bayesrnn.sweep.results import results
        from bayesrnn.sweep.space import read_space
        from bayesrnn.sweep.storage import check_storage, open_storage, storage_errors
        from bayesrnn.sweep.study import join
        from bayesrnn.sweep.worker import Worker

        need("optuna", "sweep")
        space = read_space(self.space, data=self.data, trials=self.trials or None)
        folder = Path(self.folder or Path("sweeps") / space.name)
        if self.storage:
            check_storage(self.storage)
        ready = space.experiment.prepare(space.config(space.example()), None)
        storage = open_storage(self.storage) if self.storage else None
        output_folder(folder, "results.md", "best.toml")
        place = self.storage or str(folder / "journal.log")
        storage = storage or open_storage(place)
        goal = ready.task.goal
        with storage_errors(place):
            study = join(
                space,
                storage,
                goal=goal.metric,
                maximise=goal.higher_is_better,
                data=ready.data,
                seed=self.seed,
                asked=self.trials or None,
                dead_after=self.dead_after,
            )
            del ready  # each trial prepares its own
            keep_memory()
            with _telling(study, quiet=self.json) as listener:
                if not self.json:
                    show(_begin_line(study, folder, place))
                worker = Worker(study, folder, self.dead_after, listener)
                with stopped_by_signals(worker):
                    slots = worker.run()
            found = results(study, folder, slots)
        files = found.write()
        if self.json:
            show_json(found.as_json())
        else:
            _show_results(found, files)
        if worker.stop:
            if not self.json:
                show(f"stopped; go on with:\n  {self.command()}")
            sys.exit(128 + worker.stop)

    def command(self) -> str:
        """The command that goes on with this sweep."""
        words = ["bayesrnn", "sweep", self.space]
        for option in (field for field in fields(self) if field.name != "space"):
            value = getattr(self, option.name)
            if value != option.default:
                flag = f"--{option.name.replace('_', '-')}"
                words += [flag, *([] if value is True else [str(value)])]
        return shlex.join(words)


def _begin_line(study: SharedStudy, folder: Path, place: str) -> str:
    from bayesrnn.sweep.storage import shown_place
    from bayesrnn.sweep.study import ENDS

    slots, space = study.slots(), study.space
    ended = sum(slot.state in ENDS for slot in slots)
    if ended == len(slots):
        return one_line(f"sweep {space.name}: all {ended} trials have ended already")
    before = f", {ended} of them ended already" if ended else ""
    trials = "1 trial" if len(slots) == 1 else f"{len(slots)} trials"
    return one_line(
        f"sweep {space.name}: {trials} of `bayesrnn {space.experiment.command}`{before}, "
        f"{space.sampler}, {', '.join(space.parameters)}; folder {folder}, storage {shown_place(place)}"
    )


def _show_results(found: Results, files: Sequence[str]) -> None:
    from bayesrnn.report.table import text_table

    show()
    show(text_table(*found.table(SHOWN)))
    if len(found.slots) > SHOWN:
        show(f"... and {len(found.slots) - SHOWN} more in {found.folder / files[0]}")
    if found.importance:
        show(one_line(f"what matters for the best trials: {found.importance_text()}"))
    if found.best is not None and found.best.value is not None:
        reached = found.space.experiment.goal_text(found.best.value)
        show(one_line(f"best {reached}, trial {found.best.number}; train it again with:"))
        show(one_line(f"  {found.command()}"))
    show(one_line(f"wrote {found.folder}: {', '.join(files)}"))


# ---------------------------------------------------------------------- while it works


@contextmanager
def _telling(study: SharedStudy, *, quiet: bool) -> Iterator[Listener]:
    """Inside the block, what the user sees of the work: a bar in a terminal, lines in a log."""
    if quiet:
        yield _Silence()
    elif not sys.stdout.isatty():
        yield _Lines(study)
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        with Progress(text, BarColumn(24), TimeRemainingColumn(), transient=True) as bar:
            yield _BarAndLines(study, bar)


class _Silence:
    """Says nothing but what is out of the ordinary."""

    def begun(self, slot: Slot, params: Params, slots: Sequence[Slot]) -> None: ...

    def stepped(self, trainer: Trainer, state: Progress) -> None: ...

    def ended(self, slot: Slot, slots: Sequence[Slot]) -> None: ...

    def noted(self, text: str) -> None:
        note(text)


class _Lines:
    """A line for each trial that ends, and one every half minute while it lasts."""

    def __init__(self, study: SharedStudy) -> None:
        self.study = study
        self.experiment: Experiment = study.space.experiment
        self.at_first, self.clock = 0, time.monotonic()
        self.done, self.total, self.trial = 0, 1, 0
        self.last_line = time.monotonic()

    def begun(self, slot: Slot, params: Params, slots: Sequence[Slot]) -> None:
        first = self.total == 1 and not self.done
        self._count(slots)
        self.trial = slot.number
        if first:
            self.at_first, self.clock = self.done, time.monotonic()

    def stepped(self, trainer: Trainer, state: Progress) -> None:
        if time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.say(self.progress(trainer, state) + self.time_left())

    def ended(self, slot: Slot, slots: Sequence[Slot]) -> None:
        self._count(slots)
        self.say(_ended_line(self.study, slot, slots) + self.time_left())

    def noted(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        show(one_line(text))
        self.last_line = time.monotonic()

    def progress(self, trainer: Trainer, state: Progress) -> str:
        epoch = min(state.epoch + 1, trainer.config.epochs)
        measured = self.experiment.progress_text(state.metrics)
        place = f"{self.done} of {self.total} ended  trial {self.trial}"
        return f"{place}  epoch {epoch} of {trainer.config.epochs}  {measured}"

    def time_left(self) -> str:
        """By how many trials have ended since this worker began, of whichever worker."""
        done, seconds = self.done - self.at_first, time.monotonic() - self.clock
        if not done or self.done == self.total:
            return ""
        return f"  {duration(seconds / done * (self.total - self.done))} left"

    def _count(self, slots: Sequence[Slot]) -> None:
        from bayesrnn.sweep.study import ENDS

        self.done, self.total = sum(slot.state in ENDS for slot in slots), len(slots)


class _BarAndLines(_Lines):
    """The same lines for trials that end, above a bar."""

    def __init__(self, study: SharedStudy, bar: Bar) -> None:
        super().__init__(study)
        self.bar, self.shown = bar, bar.add_task("starting", total=None)

    def begun(self, slot: Slot, params: Params, slots: Sequence[Slot]) -> None:
        super().begun(slot, params, slots)
        self.bar.update(self.shown, total=self.total, completed=self.done)

    def stepped(self, trainer: Trainer, state: Progress) -> None:
        share = (state.epoch + state.minibatch / len(trainer.task)) / trainer.config.epochs
        text = one_line(self.progress(trainer, state))
        self.bar.update(self.shown, completed=self.done + share, description=text)

    def time_left(self) -> str:
        return ""  # the bar has it

    def say(self, text: str) -> None:
        from rich.text import Text

        self.bar.console.print(Text(one_line(text)), soft_wrap=True)


def _ended_line(study: SharedStudy, slot: Slot, slots: Sequence[Slot]) -> str:
    """A trial's number, parameters, value and state, and the best so far."""
    from bayesrnn.sweep.results import params_text

    experiment = study.space.experiment
    value = "" if slot.value is None else f"  {experiment.goal_text(slot.value)}"
    best = study.best(slots)
    so_far = ""
    if best is not None and best.value is not None:
        so_far = f"  best {best.value:.6g} (trial {best.number})"
    return f"trial {slot.number}  {params_text(slot.params)}{value}  {slot.state}{so_far}"
