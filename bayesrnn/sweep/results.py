"""What a sweep has found: a table of its trials, what matters, and the best settings as a preset file."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bayesrnn.files import write_text
from bayesrnn.report.table import markdown_table
from bayesrnn.sweep.space import Params, Space
from bayesrnn.sweep.study import ENDS, REASON, SharedStudy, Slot
from bayesrnn.training.settings import Settings

TABLE, PRESET = "results.md", "best.toml"
LEAST_FOR_IMPORTANCE = 8
"""Complete trials without which nothing is said of what matters."""


@dataclass(frozen=True)
class Results:
    """The trials of a sweep, best first; those without a result come last."""

    space: Space
    folder: Path
    slots: Sequence[Slot]
    best: Slot | None
    importance: Mapping[str, float]
    """The share of each setting in what makes the best trials good; empty if that is not known."""

    @property
    def ended(self) -> int:
        return sum(slot.state in ENDS for slot in self.slots)

    def table(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Headings and rows."""
        names = list(self.space.parameters)
        headings = ["trial", "value", "state", *names]
        rows = []
        for slot in self.slots[:most]:
            value = "-" if slot.value is None else f"{slot.value:.6g}"
            params = [
                number_text(slot.params[name]) if name in slot.params else "-" for name in names
            ]
            rows.append([str(slot.number), value, slot.state, *params])
        return headings, rows

    def importance_text(self) -> str:
        return ", ".join(f"{name} {share:.0%}" for name, share in self.importance.items())

    def command(self) -> str:
        """The command that trains the best trial again."""
        assert self.best is not None
        words = ["bayesrnn", *self.space.experiment.command.split()]
        if self._has_presets:
            return shlex.join([*words, "--preset", str(self.folder / PRESET)])
        return shlex.join([*words, *_options(self.space.config(self.best.params), self.space)])

    def as_json(self) -> dict[str, Any]:
        return {
            "sweep": self.space.name,
            "folder": str(self.folder),
            "ended": self.ended,
            "trials": [self._slot_json(slot) for slot in self.slots],
            "best": None if self.best is None else self._slot_json(self.best),
            "command": None if self.best is None else self.command(),
            "importance": dict(self.importance),
        }

    def write(self) -> list[str]:
        """Write the table and, where the experiment has presets, the best settings; returns their names."""
        write_text(self.folder / TABLE, self._page())
        if self.best is None or not self._has_presets:
            return [TABLE]
        write_text(self.folder / PRESET, self._preset(self.best))
        return [TABLE, PRESET]

    @property
    def _has_presets(self) -> bool:
        return hasattr(self.space.experiment.config, "preset")

    def _page(self) -> str:
        parts = [f"# Sweep {self.space.name}: {self.ended} of {len(self.slots)} trials", ""]
        if self.best is not None:
            parts += [f"The best, trial {self.best.number}, is trained again by", ""]
            parts += [f"    {self.command()}", ""]
        if self.importance:
            parts += [f"What matters for the best trials: {self.importance_text()}.", ""]
        return "\n".join([*parts, markdown_table(*self.table()), ""])

    def _preset(self, best: Slot) -> str:
        """All settings of the best trial; what is recorded of a run, and is no setting, is left out."""
        assert best.value is not None
        config = self.space.config(best.params)
        left_out = ("format", "preset", *config.RECORDED)
        lines = [
            line for line in config.to_toml().splitlines() if line.split(" = ")[0] not in left_out
        ]
        goal = self.space.experiment.goal_text(best.value)
        return "\n".join(
            [f"# Trial {best.number} of the sweep {self.space.name}: {goal}.", *lines, ""]
        )

    def _slot_json(self, slot: Slot) -> dict[str, Any]:
        return {
            "trial": slot.number,
            "state": slot.state,
            "value": slot.value,
            "params": dict(slot.params),
            "run": str(self.folder / slot.run),
            "reason": slot.last.user_attrs.get(REASON)
            if slot.state in ("diverged", "lost")
            else None,
        }


def results(study: SharedStudy, folder: Path, slots: Sequence[Slot]) -> Results:
    """What the trials have found up to now."""
    order = {"complete": 0, "pruned": 1, "diverged": 2, "lost": 3}
    sign = -1 if study.maximise else 1

    def rank(slot: Slot) -> tuple[float, float, int]:
        value = 0.0 if slot.value is None else sign * slot.value
        return order.get(slot.state, 4), value, slot.number

    return Results(
        study.space, folder, sorted(slots, key=rank), study.best(slots), _importance(study)
    )


def params_text(params: Params) -> str:
    """The parameters of a trial in one line."""
    return "  ".join(f"{name} {number_text(value)}" for name, value in params.items())


def number_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _importance(study: SharedStudy) -> dict[str, float]:
    """By PED-ANOVA (Watanabe et al., 2023), which needs no other package; empty where it says nothing."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = [t for t in study.study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    if len(complete) < LEAST_FOR_IMPORTANCE:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(
                study.study, evaluator=PedAnovaImportanceEvaluator(), normalize=False
            )
    except (ValueError, RuntimeError, ArithmeticError):
        return {}
    total = sum(found.values())
    if not 0 < total < float("inf"):
        return {}
    return {name: share / total for name, share in found.items()}


def _options(config: Settings, space: Space) -> list[str]:
    """The options that make these settings from the command's defaults."""
    base = space.experiment.defaults({"data": config.data, "method": config.method})
    words: list[str] = []
    for name in (field.name for field in fields(config) if field.name not in config.RECORDED):
        value, option = getattr(config, name), name.replace("_", "-")
        if name == "method" or value != getattr(base, name):
            flag = f"--{option}" if value is not False else f"--no-{option}"
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return words
