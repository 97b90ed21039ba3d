"""A worker: it claims trials and trains them until all of the sweep have ended, whoever trains them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bayesrnn.files import locked
from bayesrnn.sweep.alive import BEAT, Heart, Taken, Watch, beating
from bayesrnn.sweep.space import Params
from bayesrnn.sweep.study import ENDS, SharedStudy, Slot
from bayesrnn.sweep.trial import Busy, train_trial
from bayesrnn.training import Diverged

if TYPE_CHECKING:
    from optuna.trial import Trial

    from bayesrnn.training.loop import Progress, Trainer


class Listener(Protocol):
    """What a worker tells of its work."""

    def begun(self, slot: Slot, params: Params, slots: Sequence[Slot]) -> None: ...

    def stepped(self, trainer: Trainer, state: Progress) -> None: ...

    def ended(self, slot: Slot, slots: Sequence[Slot]) -> None:
        """A trial of this worker has ended; `slots` are all trials now."""
        ...

    def noted(self, text: str) -> None:
        """One line on something that is out of the ordinary."""
        ...


@dataclass
class Worker:
    """Set `stop` to the number of a signal to end soon, with the trial saved and put back."""

    study: SharedStudy
    folder: Path
    dead_after: float
    listener: Listener
    stop: int = 0
    sleep: Callable[[float], None] = time.sleep
    _watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = Watch(self.dead_after)

    def run(self) -> list[Slot]:
        """Work until all trials have ended, or `stop`; returns the trials."""
        waits = False
        while True:
            slots = self.study.slots()
            if self.stop or all(slot.state in ENDS for slot in slots):
                return slots
            if self._bury(slots) or self.study.repair(slots):
                continue
            if self._begin(slots):
                waits = False
                continue
            if not waits:
                waits = True
                self.listener.noted(self._others(slots))
            self.sleep(min(1.0, self.dead_after / 4))

    def _bury(self, slots: Sequence[Slot]) -> bool:
        """Fail the tries whose workers are dead; whether there was any."""
        running = {slot.last.number: slot for slot in slots if slot.state == "running"}
        beats = {number: slot.last.user_attrs.get(BEAT) for number, slot in running.items()}
        dead = self._watch.dead(beats)
        for number in dead:
            slot = running[number]
            try:
                self.study.fail(slot.last, "died")
            except Taken:
                continue  # it has ended after all, or another worker was faster
            self.listener.noted(f"the worker of trial {slot.number} is dead")
        return bool(dead)

    def _begin(self, slots: Sequence[Slot]) -> bool:
        """Train the first waiting trial that can be had; whether there was one."""
        for slot in slots:
            if slot.state == "waiting" and not self._holder(slot):
                trial = self.study.claim(slot)
                if trial is not None:
                    self._train(slot, trial)
                    return True
        return False

    def _holder(self, slot: Slot) -> str:
        """Who has the run folder of a trial: a worker that was thought dead, and is not."""
        folder = self.folder / slot.run
        if not folder.is_dir():
            return ""
        try:
            with locked(folder):
                return ""
        except ValueError as error:
            return str(error)

    def _others(self, slots: Sequence[Slot]) -> str:
        """What a worker with nothing to do waits for."""
        held = [text for slot in slots if slot.state == "waiting" and (text := self._holder(slot))]
        if held:
            return held[0]
        running = [slot for slot in slots if slot.state == "running"]
        what = f"{len(running)} trials" if len(running) > 1 else "a trial"
        return f"nothing left to begin; waiting for {what} of other workers"

    def _train(self, slot: Slot, trial: Trial) -> None:
        """Train a trial that was claimed, and say how it has ended."""
        study = self.study
        with beating(lambda count: study.beat(trial, count), self.dead_after / 4) as heart:
            try:
                self._train_and_end(slot, trial, heart)
            except Taken:
                self.listener.noted(
                    f"trial {slot.number} was given to another worker, since this one was not heard of"
                )
                return
            except Busy:
                self._put_back(trial, died=False)
                return
            except KeyboardInterrupt:
                self._put_back(trial, died=False)
                raise
            except Exception as error:
                self._put_back(trial, died=True, reason=f"{type(error).__name__}: {error}")
                if isinstance(error, ValueError):
                    raise ValueError(f"trial {slot.number}: {error}") from error
                raise
        slots = study.slots()
        ended = next(found for found in slots if found.number == slot.number)
        if ended.state in ENDS:
            self.listener.ended(ended, slots)

    def _train_and_end(self, slot: Slot, trial: Trial, heart: Heart) -> None:
        study, space = self.study, self.study.space
        params = dict(trial.params)
        self.listener.begun(slot, params, study.slots())

        def follow(trainer: Trainer, state: Progress) -> int:
            heart.check()
            self.listener.stepped(trainer, state)
            return self.stop

        try:
            outcome = train_trial(
                space.experiment,
                space.config(params),
                self.folder / slot.run,
                reports_per_epoch=space.reports_per_epoch,
                report=lambda step, value: study.report(trial, step, value),
                follow=follow,
            )
        except Diverged as error:
            return study.fail(trial, "diverged", str(error))
        if outcome.state == "stopped":
            return self._put_back(trial, died=False)
        if outcome.state == "pruned":
            return study.prune(trial)
        assert outcome.value is not None
        if not math.isfinite(outcome.value):
            return study.fail(trial, "diverged", f"the goal is {outcome.value}")
        return study.complete(trial, outcome.value)

    def _put_back(self, trial: Trial, *, died: bool, reason: str = "") -> None:
        """End this try, and have the trial wait for another that goes on from its checkpoint."""
        try:
            self.study.fail(trial, "error" if died else "stopped", reason)
            self.study.repair(self.study.slots())
        except Taken:
            pass
