"""The training methods: each is one file that implements `Method`, and one line in this registry."""

from __future__ import annotations

from difflib import get_close_matches

from bayesrnn.methods.base import Dropout as Dropout
from bayesrnn.methods.base import Member as Member
from bayesrnn.methods.base import Method as Method
from bayesrnn.methods.base import MethodSpec as MethodSpec
from bayesrnn.methods.base import StepResult as StepResult

_SPECS: dict[str, MethodSpec] = {}


def register(spec: MethodSpec) -> None:
    """Register a method under its name, which must not be taken."""
    if _SPECS.get(spec.name, spec) != spec:
        raise ValueError(f"there is already a method {spec.name!r}.")
    _SPECS[spec.name] = spec


def names(task: str) -> tuple[str, ...]:
    """The methods that an experiment offers, in order of registration."""
    return tuple(name for name, s in _SPECS.items() if s.tasks is None or task in s.tasks)


def method(name: str) -> MethodSpec:
    """A method by name."""
    if name not in _SPECS:
        near = get_close_matches(name, _SPECS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown method {name!r}; {hint}choose from {', '.join(_SPECS)}.")
    return _SPECS[name]


_POINT_ESTIMATE = "bayesrnn.methods.point_estimate"

register(MethodSpec("lstm", _POINT_ESTIMATE, tasks=("language", "captions")))
register(MethodSpec("sgd", _POINT_ESTIMATE, tasks=("mnist",)))
register(MethodSpec("dropout", _POINT_ESTIMATE, dropout="standard"))
register(
    MethodSpec("variational-dropout", _POINT_ESTIMATE, dropout="variational", tasks=("language",))
)
register(
    MethodSpec(
        "sgld",
        "bayesrnn.methods.sgld",
        tasks=("language",),
        averages_weights=False,
        one_rate=True,  # the noise that it adds is that of its learning rate
    )
)
register(MethodSpec("bbb", "bayesrnn.methods.bbb"))
register(MethodSpec("sharpened", "bayesrnn.methods.sharpened"))
