"""One prior for some weights and another for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesrnn.weights.layout import Layout


@dataclass(frozen=True)
class Grouped:
    """A prior for each pattern of weight names; the first that matches counts.

    Grouped({"embedding.*": ScaleMixture(0.25, 1.0, 0.01), "*": Normal(0.1)})
    """

    groups: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping) or not self.groups:
            raise ValueError('Grouped: give priors by name pattern, such as {"*": Normal(0.1)}.')
        for pattern, prior in self.groups.items():
            if isinstance(prior, Grouped):
                raise ValueError(f"Grouped: {pattern!r} has {prior!r}, which is no single prior.")
            check_prior(prior, f"Grouped: {pattern!r}")

    def split(self, layout: Layout) -> list[tuple[Layout, Any]]:
        """The prior of each run of neighbouring weights, in order."""
        patterns = [self._pattern(slot.name) for slot in layout]
        for pattern in self.groups:
            if pattern not in patterns:
                raise ValueError(
                    f"Grouped: {pattern!r} is the first match of none of the Bayesian weights, which are "
                    f"{', '.join(slot.name for slot in layout.slots[:6])}."
                )
        runs = [
            (pattern, layout.part([slot for slot, _ in run]))
            for pattern, run in groupby(
                zip(layout, patterns, strict=True), key=lambda pair: pair[1]
            )
        ]
        for pattern, prior in self.groups.items():
            if (
                getattr(prior, "per", None) == "model"
                and [name for name, _ in runs].count(pattern) > 1
            ):
                raise ValueError(
                    f"Grouped: the weights of {pattern!r} do not lie together, so they cannot share one "
                    "learnt scale; use EmpiricalNormal(per='tensor')."
                )
        return [(part, self.groups[pattern]) for pattern, part in runs]

    def _pattern(self, name: str) -> str:
        for pattern in self.groups:
            if fnmatchcase(name, pattern):
                return pattern
        raise ValueError(
            f'Grouped: no pattern matches {name!r}; add a last one for all others, "*".'
        )


def check_prior(prior: Any, what: str) -> None:
    """Raise if this is no single prior; `what` names it."""
    if isinstance(prior, type):
        raise ValueError(
            f"{what} is the class {prior.__name__}; give its parameters, such as Normal(1.0)."
        )
    if not any(callable(getattr(prior, name, None)) for name in ("log_prob", "bind")):
        raise ValueError(
            f"{what} is {prior!r}, which has no log_prob(theta) method; use a prior such as Normal(1.0)."
        )
