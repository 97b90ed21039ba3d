"""The manners of every command: its help, and one line with exit code 2 for wrong input.

The commands and their arguments are found in the registries; a new command joins by itself.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image
from tyro.conf import Positional

from bayesrnn.cli import COMMANDS, main
from bayesrnn.cli.arguments import Place, _marks
from bayesrnn.cli.train import Train
from bayesrnn.tasks import experiments
from tests.cli.test_captions import quick_scores as quick_scores
from tests.cli.test_captions import write_coco

OUTPUTS = ("out", "export")
"""Arguments that name what is to be written, of which the tests are in tests/faults."""

QUICK = {
    **{experiment.command: "--epochs 1" for experiment in experiments()},
    "report": "--words 30 --samples 1 --other TEXT",
    "uncertainty": "--samples 1 --noise 0.1 --words 40 --other TEXT",
    "generate": "--words 5",
    "captions evaluate": "--beam 1",
    "sweep": "--trials 1",
}
"""Options with which a command takes less time."""


@dataclass(frozen=True)
class Argument:
    """An argument of a command that names a file or folder."""

    name: str
    flag: str
    positional: bool = False


def classes() -> dict[str, list[type]]:
    """The dataclasses that have the arguments of each command."""
    trained = {e.command: [Train, e.config] for e in experiments()}
    return {**trained, **{name: [command] for name, command in COMMANDS.items()}}


def places(command: type) -> list[Argument]:
    """The arguments of a command that name files or folders which it reads."""
    hints = get_type_hints(command, include_extras=True)
    found = []
    for field in fields(command):
        hint = hints[field.name]
        named = field.name in getattr(command, "PLACES", ())
        if not (named or _has_path(hint)) or field.name in OUTPUTS:
            continue
        positional = any(mark in get_args(hint) for mark in get_args(Positional[int])[1:])
        other = [mark.name for mark in _marks(hint) if getattr(mark, "name", None)]
        flag = "--" + (other or [field.name])[0].replace("_", "-")
        found.append(Argument(field.name, flag, positional))
    return found


def _has_path(hint: Any) -> bool:
    if hint is Path or any(isinstance(mark, Place) for mark in _marks(hint)):
        return True
    return any(_has_path(part) for part in get_args(hint) if not isinstance(part, str))


ALL = classes()
PLACES = {name: [place for kind in kinds for place in places(kind)] for name, kinds in ALL.items()}


# ---------------------------------------------------------------------- help


@pytest.mark.parametrize("name", ALL)
def test_help(name, capsys, monkeypatch):
    """It has a text for each option, and says nothing of None or of an empty default."""
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as exit_:
        main([*name.split(), "--help"])
    captured = capsys.readouterr()
    assert exit_.value.code in (0, None)
    assert captured.err == ""
    assert captured.out.startswith(f"usage: bayesrnn {name} ")
    assert "{None}" not in captured.out
    assert not re.search(r"\(default: *(''|None)?\)", captured.out)
    flat = " ".join(captured.out.replace("│", " ").split())
    for kind in ALL[name]:
        for option, text in texts(kind).items():
            assert f" {text}" in flat, f"{option} has no help"


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_explained_by_a_sentence_of_its_own(name):
    for kind in ALL[name]:
        found = texts(kind)
        for option in {f.name for f in fields(kind)} - {"config", *getattr(kind, "RECORDED", ())}:
            assert re.fullmatch(r"[A-Z].*\.", found[option]), option


def texts(command: type) -> dict[str, str]:
    """The text below each field of a dataclass or its parents."""
    found: dict[str, str] = {}
    for kind in reversed([k for k in command.__mro__ if hasattr(k, "__dataclass_fields__")]):
        (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    hidden = getattr(command, "RECORDED", ())
    names = [field.name for field in fields(command) if field.name not in hidden]
    return {name: found[name] for name in names if name in found}


# ---------------------------------------------------------------------- wrong input


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What commands take: a run of each experiment, text, a photo; and what none takes."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("inputs")
    random = Random(0)
    (folder / "TEXT").mkdir()
    for split in ("train", "valid", "test"):
        lines = [" ".join(random.choices([f"w{i}" for i in range(8)], k=6)) for _ in range(20)]
        (folder / "TEXT" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("w1 w2 w3\n")
    (folder / "space.toml").write_text(
        f"""
        [settings]
        data = "{folder}/TEXT"
        epochs = 1
        hidden = 4
        batch_size = 2
        [space]
        pi = [0.25, 0.75]
        """
    )
    noise = np.random.default_rng(0).integers(0, 255, (20, 20, 3), np.uint8)
    Image.fromarray(noise).save(folder / "photo.png")
    (folder / "empty folder").mkdir()
    (folder / "empty file").write_text("")
    write_coco(folder / "COCO", {"train": 60, "valid": 5, "test": 5})
    short = "--epochs 1 --no-tensorboard --json --run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESRNN_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        text = f"--data {folder}/TEXT --hidden 4 --layers 1 --batch-size 2 --unroll 5"
        main(f"train {text} {short} {folder}/language".split())
        main(f"mnist --hidden 4 {short} {folder}/mnist".split())
        images = f"--data {folder}/COCO --encoder shapes --hidden 4 --embedding 4 --min-count 1"
        main(f"captions train {images} {short} {folder}/captions".split())
    return {path.name: path for path in folder.iterdir()} | {"no such path": folder / "none/at/all"}


VALID = {
    "file": "words.txt",
    "photos": "photo.png",
    "images": "COCO",
    "folder": "empty folder",
    "space": "space.toml",
}
"""Valid values of positional arguments other than runs, by name."""


def _valid(command: str, argument: Argument) -> str:
    if command == "inspect":
        return "language/weights.safetensors"
    return VALID.get(argument.name, "captions" if command.startswith("captions ") else "language")


def _line(command: str, inputs: dict[str, Path], place: Argument, value: Path) -> list[str]:
    """A command that would do but for the value in one place."""
    root = inputs["TEXT"].parent
    quick = QUICK.get(command, "").replace("TEXT", str(inputs["TEXT"])).split()
    line = [*command.split(), *quick]
    for argument in PLACES[command]:
        if argument.positional:
            given = value if argument == place else root / _valid(command, argument)
            line += [str(given)]
    if not place.positional:
        line += [place.flag, str(value)]
    if place.name == "run":
        line += ["--resume"]
    return line


WRONG = ["no such path", "empty file", "empty folder"]
RIGHT = {
    ("list", "folder", "empty folder"),
    ("sweep", "folder", "empty folder"),
    ("sweep", "folder", "no such path"),
    ("sweep", "storage", "empty file"),
}
"""Of these, what a command has a use for."""

CASES = [
    (command, place, wrong)
    for command, found in PLACES.items()
    for place in found
    for wrong in WRONG
    if (command, place.name, wrong) not in RIGHT
]


@pytest.mark.parametrize(
    ("command", "place", "wrong"), CASES, ids=[f"{c}, {p.name}: {w}" for c, p, w in CASES]
)
def test_a_wrong_path(command, place, wrong, inputs, refused):
    refused(*_line(command, inputs, place, inputs[wrong]))


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, inputs):
    """Run a command that must end in one line, with exit code 2 and nothing written."""
    monkeypatch.chdir(tmp_path)

    def run(*line: str) -> str:
        before = _files(tmp_path, inputs)
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(line)
        captured = capsys.readouterr()
        assert exit_.value.code == 2
        assert captured.out == ""
        assert re.fullmatch(r"bayesrnn: [^\n]+\n", captured.err), captured.err
        assert _files(tmp_path, inputs) == before
        return captured.err

    return run


def _files(folder: Path, inputs: dict[str, Path]) -> set[Path]:
    given = inputs["TEXT"].parent.rglob("*")
    return {*folder.rglob("*"), *(path for path in given if "cache" not in path.parts)}


REQUIRED = [
    name
    for name, command in COMMANDS.items()
    if any(
        field.default is MISSING and field.default_factory is MISSING for field in fields(command)
    )
]


@pytest.mark.parametrize("command", REQUIRED)
def test_no_arguments(command, refused):
    refused(*command.split())


@pytest.mark.parametrize("command", ALL)
def test_an_option_that_it_does_not_have(command, refused):
    assert "; see bayesrnn" in refused(*command.split(), "--nonsense")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])  # in which the parser draws other boxes
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("captions features", "missing from bayesrnn captions features: IMAGES; see"),
        ("inspect a --jsn", "unrecognized options: --jsn; perhaps you meant: --json, --no-json; see"),
        ("inspect a b", "unrecognized options: b; see"),
        ("train --epochs 1.5", "--epochs 1.5 must be a whole number; see"),
        ("train --run", "missing value for argument '--run'. Expected 1 values; see"),
        ("evaluate a --split dev", "--split dev: choose from train, valid, test; see"),
        ("evaluate a --split tset", "--split tset: did you mean test? choose from train, valid, test; see"),
        ("train --lr fast", "--lr fast must be a number; see"),
        ("prune a --drop most", "--drop most must be a share such as 0.8 or 80%; see"),
        ("uncertainty --samples 1 2 a", "--samples takes numbers; put the runs before --samples; see"),
        ("train words.txt", "unrecognized options: words.txt; give the data with --data; see"),
        ("generate a words", "unrecognized options: words; give the text to continue with --prompt; see"),
        ("score a some words", "unrecognized options: words; to score a sentence, give --text; see"),
    ],
)  # fmt: skip
def test_the_line_names_the_argument_and_the_cure(arguments, says, encoding):
    command = [sys.executable, "-m", "bayesrnn", *arguments.split()]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"bayesrnn: {says}")
    assert done.stderr.endswith(" --help.\n")


RUNS = [
    (command, place)
    for command, found in PLACES.items()
    for place in found
    if "run" in place.name or place.name in ("baseline", "file")
]


@pytest.mark.usefixtures("quick_scores")
@pytest.mark.parametrize(
    ("command", "place"), RUNS, ids=[f"{command}, {place.name}" for command, place in RUNS]
)
def test_a_run_of_each_kind_is_of_use_or_refused(command, place, inputs, refused):
    used = 0
    for experiment in experiments():
        line = _line(command, inputs, place, inputs[experiment.name])
        if _works(line):
            used += 1
        else:
            refused(*line)
    assert used or "run" not in place.name


def _works(line: list[str]) -> bool:
    try:
        main(line)
    except SystemExit as exit_:
        return not exit_.code
    return True
