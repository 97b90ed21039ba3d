"""How the arguments of every command are parsed, and how its help looks."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

import tyro
from tyro.conf import DisallowNone, PositionalMetavarFromFieldName, Suppress, arg
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
)

ALL_OPTIONS = (DisallowNone, PositionalMetavarFromFieldName)
"""None can not be typed, though an option that is not given may be None; positional arguments have names."""


def parse(kind: Any, prog: str, arguments: Sequence[str], **options: Any) -> Any:
    """An object of a dataclass from the command line; ValueError, with one line, if that is wrong."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                kind, prog=prog, args=arguments, config=ALL_OPTIONS, registry=_REGISTRY, **options
            )
    except SystemExit as exit_:
        if not exit_.code:  # the help was asked for
            raise
        text = _plain(_in_one_line(said.getvalue()), getattr(kind, "STRAY", ""))
        raise ValueError(f"{text}; see {prog} --help.") from None


_REGISTRY = ConstructorRegistry()
_inside = False


@_REGISTRY.struct_rule
def _with_hints(info: Any) -> StructConstructorSpec | None:
    """The fields of a dataclass, each with the hint on its default that suits it."""
    global _inside
    if _inside or not is_dataclass(info.type):
        return None  # tyro's own rule is next
    _inside = True
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _inside = False
    if not isinstance(spec, StructConstructorSpec):
        return None
    hidden = getattr(info.type, "RECORDED", ())
    shown = [
        replace(field, type=Suppress[field.type]) if field.name in hidden else _with_hint(field)
        for field in spec.fields
    ]
    return replace(spec, fields=tuple(shown))


def _with_hint(field: StructFieldSpec) -> StructFieldSpec:
    if is_dataclass(field.default):
        return field  # settings, which have fields of their own
    if field.default is MISSING_NONPROP and _is_list(field.type):
        metavar = field.name.replace("_", "-").upper()
        mark = arg(metavar=f"{metavar} ...", help_behavior_hint="(required)")
    else:
        mark = arg(help_behavior_hint=_hint)
    return replace(field, type=Annotated[field.type, mark], helptext=lambda: _unwrapped(field))


def _unwrapped(field: StructFieldSpec) -> str | None:
    """The text of an option without the line breaks of its docstring; the terminal has its own width."""
    text = field.helptext() if callable(field.helptext) else field.helptext
    return text and " ".join(text.split())


def _is_list(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _is_list(get_args(kind)[0])
    return get_origin(kind) is tuple


def _hint(default: str) -> str:
    """The default, unless it is nothing: then the text says what happens."""
    return "" if default in ("", "''", "None") else f"(default: {default})"


def _in_one_line(box: str) -> str:
    """What tyro says in a box on several lines, without the help of the options it names."""
    blocks: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines():
        if _RULE.fullmatch(line):
            blocks.append([])
        elif line.startswith(("│ ", "  ")) and not line[1:].startswith(9 * " "):
            blocks[-1].append(line[1:].strip("│ "))
    texts = [" ".join(block).partition(" Got errors:")[0].strip().rstrip(".:") for block in blocks]
    said = [text for text in texts if text and not text.startswith(_HELP)]
    return "; ".join(text[0].lower() + text[1:] for text in said) or "wrong arguments"


def _plain(text: str, stray: str) -> str:
    """What tyro says, in plain words; `stray` is the cure for a word that is no value of an option."""
    for pattern, words in _PLAIN.items():
        if found := re.match(f"error parsing {pattern}", text, re.DOTALL):
            return words.format(*found.groups())
    if found := re.match(_CHOICE, text):
        return _choice(*found.groups())
    if stray and re.match(r"unrecognized options: [^-]", text):
        return f"{text}; {stray}"
    return text


_PLAIN = {
    r"(--\S+): invalid literal for int\(\) with base 10: '(.*)'": "{} {} must be a whole number",
    r"(--\S+): could not convert string to float: '(.*)'": "{} {} must be a number",
    r"(--drop): no type matching .* from \['(.*)'\]; got": "{} {} must be a share such as 0.8 or 80%",
    r"(--\S+): Could not find valid parse for arguments: ": "{0} takes numbers; put the runs before {0}",
}
"""What tyro says of a value, and the same in plain words."""
_CHOICE = r"invalid choice '(.*)' for argument '(--\S+)'\. Expected one of \((.*)\)"


def _choice(given: str, option: str, listed: str) -> str:
    choices = re.findall(r"'(.*?)'", listed)
    near = get_close_matches(given, choices, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{option} {given}: {hint}choose from {', '.join(choices)}"


_RULE = re.compile(r"[│╭╰─╮╯ -]+|╭.*")
"""A line of the frame, or between two blocks; where the terminal has no such characters, they are others."""
_HELP = ("Argument helptext", "For full helptext")
"""How the blocks begin that repeat the help."""
