"""`bayesrnn completion`: a script with which a shell completes commands, options and file names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tyro.conf import Positional

from bayesrnn import methods
from bayesrnn.cli.arguments import Place
from bayesrnn.cli.console import show
from bayesrnn.training.settings import Settings


@dataclass(frozen=True)
class Completion:
    """Print a script that makes a shell complete commands, options and file names.

    For bash, put `source <(bayesrnn completion bash)` into ~/.bashrc; for zsh, put
    `source <(bayesrnn completion zsh)` into ~/.zshrc.
    """

    shell: Positional[Literal["bash", "zsh"]]
    """Shell to print the script for: bash or zsh."""

    def run(self) -> None:
        show(script(self.shell), end="")


TAKE_PRETRAINED = ("evaluate", "generate", "score", "uncertainty", "calibration", "inspect")
"""The commands that take the model in the package besides run folders and files."""
TEXTS = ("pydocs", "ptb", "wikitext-2")
"""The texts that have names; said again here, since the module that knows them waits for torch."""
TAKE_TEXTS = (
    *(
        f"{name} --data"
        for name in ("train", "evaluate", "compare", "prune", "calibration", "sweep")
    ),
    *(f"{name} {option}" for name in ("uncertainty", "report") for option in ("--data", "--other")),
)
"""The options that take them besides folders and files."""


@dataclass(frozen=True)
class Argument:
    """What a shell has to know of an argument."""

    flag: str | None
    """None for a positional argument."""
    kind: Literal["flag", "place", "other"]
    choices: tuple[str, ...] = ()

    @property
    def spellings(self) -> list[str]:
        """The options with which it is given."""
        if self.flag is None:
            return []
        return (
            [self.flag, self.flag.replace("--", "--no-", 1)] if self.kind == "flag" else [self.flag]
        )


def all_arguments() -> dict[str, list[Argument]]:
    """The arguments of every command, from its dataclass."""
    from bayesrnn.cli import COMMANDS
    from bayesrnn.cli.train import Train
    from bayesrnn.tasks import experiments

    found = {e.command: [*arguments_of(Train), *arguments_of(e.config)] for e in experiments()}
    return {**found, **{name: arguments_of(command) for name, command in COMMANDS.items()}}


def arguments_of(command: type) -> list[Argument]:
    """The arguments that the fields of a dataclass stand for, without those of settings inside it."""
    hints = get_type_hints(command, include_extras=True)
    hidden = ("config", *getattr(command, "RECORDED", ()))
    return [
        _argument(command, field.name, hints[field.name])
        for field in fields(command)
        if field.name not in hidden
    ]


def _argument(command: type, name: str, hint: Any) -> Argument:
    parts = list(_parts(hint))
    other_names = [part.name for part in parts if isinstance(getattr(part, "name", None), str)]
    flag = "--" + (other_names or [name])[0].replace("_", "-")
    positional = any(mark in parts for mark in get_args(Positional[int])[1:])
    place = Path in parts or any(isinstance(part, Place) for part in parts)
    place = place or name in getattr(command, "PLACES", ())
    kind = "flag" if bool in parts else "place" if place else "other"
    return Argument(None if positional else flag, kind, _choices(command, name, hint))


def _choices(command: type, name: str, hint: Any) -> tuple[str, ...]:
    if issubclass(command, Settings):
        return methods.names(command.TASK) if name == "method" else command.CHOICES.get(name, ())
    return next((get_args(kind) for kind in _parts(hint) if get_origin(kind) is Literal), ())


def _parts(hint: Any) -> Iterator[Any]:
    """A type, those it is made of, and what is said of them."""
    yield hint
    for part in () if get_origin(hint) is Literal else get_args(hint):
        yield from _parts(part)


# ---------------------------------------------------------------------- the script


def script(shell: str) -> str:
    """The script for a shell; zsh can run that for bash."""
    first = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    commands = all_arguments()
    groups = sorted({name.split()[0] for name in commands if " " in name})
    return first + _TEMPLATE.format(
        commands=" ".join(dict.fromkeys(name.split()[0] for name in commands)),
        groups="|".join(groups),
        members="\n".join(
            _case(group, _words(*(n.split()[1] for n in commands if n.startswith(f"{group} "))))
            for group in groups
        ),
        values="\n".join(line for name, found in commands.items() for line in _values(name, found)),
        options="\n".join(
            _case(name, f"options={_quoted(s for a in found for s in a.spellings)}")
            for name, found in commands.items()
        ),
        positional="\n".join(
            _case(
                name,
                _words(*positional[0].choices)
                if positional[0].choices
                else _files("pretrained" if name in TAKE_PRETRAINED else ""),
            )
            for name, found in commands.items()
            if (positional := [argument for argument in found if argument.flag is None])
        ),
    )


def _values(name: str, found: list[Argument]) -> Iterator[str]:
    """What may follow each option that takes a value."""
    for argument in found:
        if argument.flag is not None and argument.kind != "flag":
            option = f"{name} {argument.flag}"
            what = _words(*argument.choices) if argument.choices else ":"
            place = argument.kind == "place"
            texts = " ".join(TEXTS) if option in TAKE_TEXTS else ""
            yield _case(option, _files(texts) if place else what)


def _case(pattern: str, action: str) -> str:
    return f'        "{pattern}") {action} ;;'


def _words(*words: str) -> str:
    return f"_bayesrnn_words {_quoted(words)}"


def _files(named: str) -> str:
    """File names, and these words."""
    return f'_bayesrnn_files "{named}"' if named else "_bayesrnn_files"


def _quoted(words: Any) -> str:
    return '"' + " ".join(words) + '"'


_TEMPLATE = """\
# Completes the commands and options of bayesrnn, and file names. Made by `bayesrnn completion`.

_bayesrnn_words() {{
    COMPREPLY=($(compgen -W "$1" -- "$word"))
}}

_bayesrnn_files() {{
    local named="$(compgen -W "$1" -- "$word")"
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($named $(compgen -f -- "$word"))
}}

_bayesrnn() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" first=2 options=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        _bayesrnn_words "{commands} --help --version"
        return
    fi
    case "$command" in
        {groups}) command="$command ${{COMP_WORDS[2]}}"; first=3 ;;
    esac
    if [ "$COMP_CWORD" -lt "$first" ]; then
        case "${{COMP_WORDS[1]}}" in
{members}
        esac
        return
    fi
    if [ "$word" = "=" ]; then  # --option=value is three words
        word=""
    elif [ "$before" = "=" ]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "$command" in
{options}
    esac
    case "$word" in
        -*) _bayesrnn_words "$options --help"; return ;;
    esac
    case "$before" in
        --no-*) ;;
        --*)
            case "$command $before" in
{values}
                *) before="" ;;
            esac
            if [ -n "$before" ]; then return; fi ;;
    esac
    case "$command" in
{positional}
        *) _bayesrnn_words "$options --help" ;;
    esac
}}

complete -F _bayesrnn bayesrnn
"""
