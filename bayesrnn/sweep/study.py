"""The trials of a sweep, as all its workers share them through a storage.

A trial that users count is a `Slot`: one or more tries at the same parameters, each a trial of Optuna's. The
slots are all made at the beginning, as waiting trials, and workers claim them: so there are never too many.

Everything follows from the list of Optuna's trials, in which each worker may find what is to be done: a slot
that is missing, a try that has failed and has no next. If two do the same at the same time, the trial with
the lower number counts, on which all agree.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bayesrnn.sweep.alive import BEAT, Taken
from bayesrnn.sweep.space import Choices, Params, Space

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

MOST_TRIES = 3
"""How often a trial is begun whose workers die, before it is given up."""

SPACE, TRIALS = "space", "trials"
"""Attributes of a study: the space it was made with, and the number of slots it has."""
SLOT, TRY, DEATHS, OUTCOME, REASON, RUN = "trial", "try", "deaths", "outcome", "reason", "run"
"""Attributes of one of Optuna's trials: the slot, which of its tries, how many before it have ended in a
death, how it ended itself if it failed, why, and the name of the run folder."""

Failure = Literal["diverged", "stopped", "died", "error"]
"""How a failed try has ended. A stopped one is resumed, and one that died too, but not for ever."""
State = Literal["waiting", "running", "failed", "complete", "pruned", "diverged", "lost"]
"""Of a slot. A failed one is to be tried again; the last four are ends."""
ENDS: tuple[State, ...] = ("complete", "pruned", "diverged", "lost")


@dataclass(frozen=True)
class Slot:
    """A trial as users count them; its last try says how it stands."""

    number: int
    last: FrozenTrial

    @property
    def run(self) -> str:
        """The name of its run folder, which all its tries share."""
        return run_name(self.number)

    @property
    def params(self) -> Params:
        return {**self.last.system_attrs.get("fixed_params", {}), **self.last.params}

    @property
    def value(self) -> float | None:
        """The best value of the goal; for a pruned one, the last."""
        return self.last.value if self.state in ("complete", "pruned") else None

    @property
    def state(self) -> State:
        known: dict[str, State] = {
            "COMPLETE": "complete",
            "PRUNED": "pruned",
            "WAITING": "waiting",
            "RUNNING": "running",
        }
        if self.last.state.name in known:
            return known[self.last.state.name]
        if self.last.user_attrs.get(OUTCOME) == "diverged":
            return "diverged"
        return "lost" if self.deaths >= MOST_TRIES else "failed"

    @property
    def deaths(self) -> int:
        """How many of its tries have failed for another reason than that they were stopped."""
        attributes = self.last.user_attrs
        died = self.last.state.name == "FAIL" and attributes.get(OUTCOME) != "stopped"
        return attributes[DEATHS] + died


def run_name(number: int) -> str:
    return f"trial-{number:04d}"


@dataclass
class SharedStudy:
    """A sweep's study, joined; see `join`."""

    space: Space
    study: Study
    storage: BaseStorage
    seed: int
    maximise: bool
    _id: int = field(init=False)

    def __post_init__(self) -> None:
        self._id = self.storage.get_study_id_from_name(self.study.study_name)

    # ------------------------------------------------------------------ what there is

    def slots(self) -> list[Slot]:
        """All slots by number, each with its last try."""
        last: dict[int, FrozenTrial] = {}
        for trial in sorted(self.study.get_trials(deepcopy=False), key=lambda t: t.number):
            attributes = trial.user_attrs
            if SLOT not in attributes:
                raise ValueError(
                    f"the study {self.study.study_name!r} has trials that are not of this sweep; "
                    "choose another --storage."
                )
            before = last.get(attributes[SLOT])
            # Of two at the same try, the first counts.
            if before is None or before.user_attrs[TRY] < attributes[TRY]:
                last[attributes[SLOT]] = trial
        return [Slot(number, last[number]) for number in sorted(last)]

    def best(self, slots: Sequence[Slot]) -> Slot | None:
        """The complete trial with the best value; of equal ones, the first."""
        found = [slot for slot in slots if slot.state == "complete" and slot.value is not None]
        sign = -1 if self.maximise else 1
        return min(found, key=lambda slot: sign * (slot.value or 0.0), default=None)

    # ------------------------------------------------------------------ what a worker does

    def fill(self, count: int) -> None:
        """Make the slots that are missing, up to this number."""
        present = {slot.number for slot in self.slots()}
        for number, params in enumerate(self.space.cells(self.seed, count)):
            if number not in present:
                self._add(number, attempt=0, deaths=0, params=params, values={})
        self.study.set_user_attr(TRIALS, count)

    def repair(self, slots: Sequence[Slot]) -> bool:
        """Enqueue the next try of each slot whose last has failed; whether there was any."""
        failed = [slot for slot in slots if slot.state == "failed"]
        for slot in failed:
            last = slot.last
            self._add(
                slot.number,
                attempt=last.user_attrs[TRY] + 1,
                deaths=slot.deaths,
                params=slot.params,
                values=last.intermediate_values,
            )
        return bool(failed)

    def claim(self, slot: Slot) -> Trial | None:
        """A waiting slot's trial, with its parameters; None if another worker was faster."""
        import optuna

        trial_id = self._trial_id(slot.last)
        try:
            running = optuna.trial.TrialState.RUNNING
            if not self.storage.set_trial_state_values(trial_id, state=running):
                return None
        except optuna.exceptions.UpdateFinishedTrialError:
            return None
        # A study of its own: its sampler depends on the slot and not on who claims it, or when.
        study = optuna.load_study(
            study_name=self.study.study_name,
            storage=self.storage,
            sampler=_sampler(self.space, self.seed, slot.number),
            pruner=_pruner(self.space),
        )
        study.get_trials(deepcopy=False)  # a database's cache knows a trial only after that
        trial = optuna.trial.Trial(study, trial_id)
        for name in self.space.parameters:
            _suggest(trial, self.space, name)
        return trial

    def beat(self, trial: Trial, count: int) -> None:
        """Show that the trial's worker is alive."""
        with _own():
            self.storage.set_trial_user_attr(self._trial_id(trial), BEAT, count)

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Report a value of the goal; whether to prune the trial. What is known already is no news."""
        if step in self._current(trial).intermediate_values:
            return False
        with _own():
            trial.report(value, step)
            return trial.should_prune()

    def complete(self, trial: Trial, value: float) -> None:
        self._end(trial, "COMPLETE", [value])

    def prune(self, trial: Trial) -> None:
        values = self._current(trial).intermediate_values
        self._end(trial, "PRUNED", [values[max(values)]] if values else None)

    def fail(self, trial: Trial | FrozenTrial, outcome: Failure, reason: str = "") -> None:
        """End a try without a value."""
        trial_id = self._trial_id(trial)
        with _own():
            self.storage.set_trial_user_attr(trial_id, OUTCOME, outcome)
            if reason:
                self.storage.set_trial_user_attr(trial_id, REASON, reason[:500])
        self._end(trial, "FAIL", None)

    # ------------------------------------------------------------------ helpers

    def _add(
        self,
        slot: int,
        *,
        attempt: int,
        deaths: int,
        params: Params,
        values: Mapping[int, float],
    ) -> None:
        import optuna

        attributes = {SLOT: slot, TRY: attempt, DEATHS: deaths, RUN: run_name(slot)}
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.WAITING,
                system_attrs={"fixed_params": dict(params)},  # as Study.enqueue_trial does
                user_attrs=attributes,
                intermediate_values=dict(values),
            )
        )

    def _end(self, trial: Trial | FrozenTrial, state: str, values: list[float] | None) -> None:
        import optuna

        with _own():
            self.storage.set_trial_state_values(
                self._trial_id(trial), optuna.trial.TrialState[state], values
            )

    def _current(self, trial: Trial | FrozenTrial) -> FrozenTrial:
        return self.storage.get_trial(self._trial_id(trial))

    def _trial_id(self, trial: Trial | FrozenTrial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)


def join(
    space: Space,
    storage: BaseStorage,
    *,
    goal: str,
    maximise: bool,
    data: str | None,
    seed: int,
    asked: int | None,
    dead_after: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> SharedStudy:
    """Make the study of a space, or join it if there is one; ValueError if that is of another space.

    `data` is a digest of the training data, which may lie elsewhere on each machine; `asked` is the
    number of trials, if it was asked for, which may be more than those there are.
    """
    import optuna

    made = {**space.as_json(), "goal": goal, "data": data, "seed": seed}
    try:
        direction = "maximize" if maximise else "minimize"
        study = optuna.create_study(storage=storage, study_name=space.name, direction=direction)
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=space.name, storage=storage)
        _wait_until_made(study, dead_after, sleep, clock)
    shared = SharedStudy(space, study, storage, seed, maximise)
    if SPACE not in study.user_attrs:
        if study.get_trials(deepcopy=False):
            raise ValueError(f"the study {space.name!r} is no sweep of bayesrnn; choose another.")
        study.set_user_attr(SPACE, made)
    _check_same(space.name, study.user_attrs[SPACE], made)
    there = study.user_attrs.get(TRIALS, 0)
    if asked is not None and asked < there:
        raise ValueError(
            f"the sweep {space.name!r} has {there} trials; there can be more, but not fewer."
        )
    if space.trials > there:
        shared.fill(space.trials)
    return shared


def _wait_until_made(
    study: Study, dead_after: float, sleep: Callable[[float], None], clock: Callable[[], float]
) -> None:
    """Wait while the worker that has made the study makes its trials; if it dies, the caller goes on."""
    seen, since = None, clock()
    while TRIALS not in study.user_attrs:
        made = len(study.get_trials(deepcopy=False))
        if made and SPACE not in study.user_attrs:
            return
        if made != seen:
            seen, since = made, clock()
        if clock() - since >= dead_after:
            return
        sleep(min(0.2, dead_after / 4))


def _check_same(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in sorted({*before, *now}):
        was, is_ = before.get(key), now.get(key)
        if was == is_:
            continue
        if isinstance(was, dict) and isinstance(is_, dict):
            key, was, is_ = next(
                (f"{key}.{part}", was.get(part), is_.get(part))
                for part in sorted({*was, *is_})
                if was.get(part) != is_.get(part)
            )
        differs = "the training data" if key == "data" else f"{key} = {is_}, which was {was}"
        raise ValueError(
            f"the sweep {name!r} was begun with another space: {differs}. Put that back, or begin a new "
            "sweep with another --folder or --storage."
        )


def _suggest(trial: Trial, space: Space, name: str) -> Any:
    parameter = space.parameters[name]
    if isinstance(parameter, Choices):
        return trial.suggest_categorical(name, parameter.values)
    if isinstance(parameter.low, int) and isinstance(parameter.high, int):
        return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


def _sampler(space: Space, seed: int, slot: int) -> BaseSampler:
    """The sampler of a slot; a grid samples nothing, since all is fixed."""
    from optuna.samplers import RandomSampler, TPESampler

    digest = hashlib.sha256(f"{seed} {slot}".encode()).digest()
    own = int.from_bytes(digest[:4], "big")
    return TPESampler(seed=own) if space.sampler == "tpe" else RandomSampler(seed=own)


def _pruner(space: Space) -> BasePruner:
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    kinds = {"median": MedianPruner, "halving": SuccessiveHalvingPruner, "none": NopPruner}
    return kinds[space.pruner]()


class _own:
    """Inside the block, that a trial has ended already means that another worker has ended it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and type(error).__name__ == "UpdateFinishedTrialError":
            raise Taken from None
