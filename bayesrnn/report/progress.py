"""The progress of a page while it is made: what is being done, and how much of the whole is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayesrnn.training.experiment import Progress


def _ignore(amount: float) -> None:
    pass


@dataclass(frozen=True)
class Work:
    """The work of making a page: a `Progress` that may also be told amounts, in any one unit."""

    begin: Progress
    """Called with the name of each stage as it begins."""
    expect: Callable[[float], None] = _ignore
    """Called once with the amount of work in all, before the first of it is done."""
    advance: Callable[[float], None] = _ignore
    """Called with each amount of work done."""

    def __call__(self, what: str) -> None:
        self.begin(what)

    @classmethod
    def of(cls, progress: Progress) -> Work:
        """A progress as work; one that is only told names remains so."""
        return progress if isinstance(progress, cls) else cls(progress)


class Stages:
    """Stages of about the same size: each is done when the next begins."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._work, self._begun = Work.of(progress), False
        self._work.expect(total)

    def __call__(self, what: str) -> None:
        if self._begun:
            self._work.advance(1)
        self._begun = True
        self._work.begin(what)
