"""Arguments that no one should give: each ends in one line and exit code 2, or does what it says."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints

import pytest
from tyro.conf import Positional

from bayesrnn.cli import COMMANDS
from bayesrnn.cli.train import Train
from bayesrnn.files import RESULTS, check_output
from bayesrnn.tasks import experiments
from tests.faults.commands import SEED, Outcome, cases, run

INTEGERS = [
    *("-1", "0", "1", "2", "3", "10000000", "1000000000000", str(2**63), str(-(2**63) - 1)),
    *("9" * 30, "9" * 5000, "nan", "1e3", "", "٣", "0x10", "1_0", "[red]", "\x1b[31m", "\udcff"),
]
FLOATS = [
    *("nan", "inf", "-inf", "1e38", "-1e38", "1e-38", "1e-320", "1e400", "0", "-0.0", "0.5", "1"),
    *("1000000", "9" * 400, "", "half", "[/]", "\x1b]0;title\x07"),
]
# No path here may be one that a command at fault could destroy: these tests may be run by root, on any code.
TEXTS = [
    *("", "~nosuchuser", "~nosuchuser/x", "[red]", "x[/]", "a\x1b[31mb", "a\0b", "\udcff", "a\nb"),
    *("a" * 5000, "-", "fifo", ".", "nowhere", "\u202egnp", "w1 w2", "$x$"),
]


@dataclass(frozen=True)
class Option:
    """An option of a command, or with no flag one of its positional arguments."""

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    positional: bool = False

    def values(self, random: Random) -> list[str]:
        """The flag and a value for it."""
        flag = [] if self.positional else ["--" + self.name.replace("_", "-")]
        if self.kind == "bool":
            return flag if random.random() < 0.8 else [*flag, random.choice(TEXTS)]
        pool = {"int": INTEGERS, "float": FLOATS}.get(self.kind, TEXTS)
        if self.choices and random.random() < 0.5:
            return [*flag, random.choice(self.choices)]
        value = random.choice(pool)
        if flag and random.random() < 0.3:
            return [f"{flag[0]}={value}"]
        return [*flag, value]


def options_of(command: type) -> list[Option]:
    """The options of a command, from its dataclass."""
    found = []
    hints = get_type_hints(command, include_extras=True)
    for field in fields(command):
        hint = hints[field.name]
        if is_dataclass(field.type) or field.name == "config":
            continue
        kinds = set(_leaves(hint))
        kind = next((k for k in ("bool", "int", "float", "Path", "str") if k in kinds), "str")
        choices = tuple(c for c in kinds if c.startswith("="))
        positional = any(mark in get_args(hint) for mark in get_args(Positional[int])[1:])
        found.append(Option(field.name, kind, tuple(c[1:] for c in choices), positional))
    return found


def _leaves(hint: Any) -> list[str]:
    if isinstance(hint, str):
        return [f"={hint}"]
    if isinstance(hint, type) and not get_args(hint):
        return [hint.__name__]
    return [leaf for part in get_args(hint) for leaf in _leaves(part)]


def all_commands() -> dict[str, list[Option]]:
    """The options of every command; a new one joins by itself."""
    found = {name: options_of(command) for name, command in COMMANDS.items()}
    for experiment in experiments():
        found[experiment.command] = [*options_of(experiment.config), *options_of(Train)]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny text, a tiny run of it and other inputs of commands."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "text").mkdir()
    random = Random(0)
    for split in ("train", "valid", "test"):
        lines = [" ".join(random.choices([f"w{i}" for i in range(8)], k=6)) for _ in range(20)]
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("w1 w2 w3\nw2 w9\n")
    settings = f'data = "{folder}/text"\nepochs = 1\nhidden = 4\nbatch_size = 2\n'
    (folder / "space.toml").write_text(f"[settings]\n{settings}[space]\npi = [0.25, 0.75]\n")
    (folder / "images").mkdir()
    os.mkfifo(folder / "fifo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESRNN_CACHE", str(folder / "cache"))
        assert run(*_training("train", folder, "run")).fault() is None
    return folder


def _training(command: str, folder: Path, name: str) -> list[str]:
    base = {
        "train": f"--data {folder}/text --hidden 4 --layers 1 --batch-size 2 --unroll 5",
        "mnist": "--data digits --hidden 4",
        "captions train": f"--data {folder}/nowhere",
    }[command]
    short = f"--epochs 1 --run {folder}/{name} --no-tensorboard --json"
    return f"{command} {base} {short}".split()


# Options with which a command takes less time; `text` is the tiny text in the folder where they are run.
QUICK = {
    "report": "--words 30 --samples 1 --other text",
    "uncertainty": "--samples 1 --noise 0.1 --words 40 --other text",
    "calibration": "--samples 1",
    "sweep": "--trials 1",
}
INPUTS = {"file": "words.txt", "images": "images", "photos": "words.txt", "space": "space.toml"}


def _case(name: str, options: list[Option], folder: Path, random: Random, number: int) -> list[str]:
    """A command that would do, and one or two options or inputs at odds with it."""
    chosen = random.sample(options, min(len(options), random.choice((1, 1, 2))))
    if name in COMMANDS:
        line = [*name.split(), *QUICK.get(name, "").split()]
        for option in (o for o in options if o.positional):
            given = str(folder / INPUTS.get(option.name, "run"))
            if name == "inspect":
                given = str(folder / "run" / "weights.safetensors")
            line.append(option.values(random)[0] if option in chosen else given)
    else:
        line = _training(name, folder, f"new-{number}")
    for option in chosen:
        if not option.positional:
            line += option.values(random)
    return [*line, "--json"] if random.random() < 0.5 else line


def test_fuzzed_arguments(place, monkeypatch):
    """No argument is a traceback, a hang, invalid JSON or a command to the terminal."""
    monkeypatch.chdir(place)
    random, commands, faults = Random(SEED), all_commands(), []
    for number in range(cases(120)):
        name = list(commands)[number % len(commands)]
        outcome = run(*_case(name, commands[name], place, random, number))
        if outcome.fault():
            faults.append(str(outcome))
    assert not faults, "\n".join([f"{len(faults)} faults", *faults])


def test_every_number_has_bounds():
    """A new option of a command declares its bounds, and a new setting too."""
    from bayesrnn.cli import arguments

    for name, command in COMMANDS.items():
        hints = get_type_hints(command, include_extras=True)
        for option in options_of(command):
            if option.kind in ("int", "float"):
                marks = list(arguments._marks(hints[option.name]))
                assert any(isinstance(m, arguments.Between) for m in marks), (name, option.name)
    for experiment in experiments():
        shares = {"dropout", "average", "pi"}
        for option in options_of(experiment.config):
            if option.kind in ("int", "float") and option.name not in shares:
                assert option.name in experiment.config.BETWEEN, (experiment.name, option.name)


def fails(*given: object, says: str) -> Outcome:
    """The command ends in one line with this text, and exit code 2."""
    outcome = run(*given)
    assert outcome.fault() is None, str(outcome)
    assert outcome.code == 2, str(outcome)
    assert says in outcome.err, outcome.err
    return outcome


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("train --log-sigma1 1e38", "log_sigma1 = 1e+38 must lie between -40 and 40"),
        ("train --hidden 1000000000000", "hidden = 1000000000000 must lie between 1 and 65,536"),
        ("train --layers 10000000", "layers = 10000000 must lie between 1 and 1,000"),
        ("train --lr nan", "lr = nan must be a finite number"),
        ("train --init-scale inf", "init_scale = inf must be a finite number"),
        ("train --data ~nosuchuser/text", "~nosuchuser/text: no such user"),
        ("train --run ~nosuchuser/run", "~nosuchuser/run: no such user"),
        (
            "generate RUN --temperature nan",
            "temperature = nan must be a number between 0 and 1e+06",
        ),
        ("generate RUN --words -5", "words = -5 must be 1 or more"),
        ("generate RUN --words 1000000000", "words = 1000000000 must be at most 1,000,000"),
        ("evaluate RUN --samples 100000000000", "samples = 100000000000 must be at most 10,000"),
        ("evaluate RUN --dynamic --lr inf", "lr = inf must be a number between 0 and 1e+06"),
        ("evaluate RUN --seed 99999999999999999999", "seed = 99999999999999999999 must be at most"),
        ("evaluate RUN --streams 0", "streams = 0 must be 1 or more"),
        ("evaluate RUN --data ~nosuchuser", "~nosuchuser: no such user"),
        ("uncertainty RUN --noise nan", "noise = nan must be a number between 0 and 1"),
        ("uncertainty RUN --samples -3", "samples = -3 must be 1 or more"),
        ("compare RUN --samples -1", "samples = -1 must be 0 or more"),
        ("prune RUN --drop nan", "drop = nan must be a number between 0 and 1"),
        ("score RUN /dev/zero", "/dev/zero is a device"),
        ("compare [/red]", "[/red]: no such run folder"),
    ],
)
def test_a_number_or_path_beyond_reason(place, options, says, monkeypatch):
    monkeypatch.chdir(place)
    fails(*options.replace("RUN", "run").split(), says=says)
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("train --data run", "run is a run, not text; use --from to start from it."),
        ("evaluate run --data run", "--data run is a run, not text"),
        ("train --resume", "--resume needs --run FOLDER."),
        ("train --data text --run text", "text exists and is not a run; choose another folder with --run."),
        ("train --data text --run run", "run exists already; continue it with --resume"),
        ("prune run --posterior", "--posterior needs --export FILE."),
        ("prune run --storage int8", "--storage needs --export FILE."),
        ("prune run --drop 150%", "drop = 1.5 must be below 1"),
        ("evaluate run --lr 3", "--lr needs --dynamic."),
        ("compare run --lr 3", "--lr needs --dynamic."),
        ("score words.txt run", "words.txt is not a run; the run comes first."),
        ("score words.txt pretrained", "words.txt is not a run; the run comes first."),
        ("score pretrained words", "words: no such file; to score a sentence, give --text."),
        ("score pretrain --text w1", "did you mean pretrained?"),
        ("uncertainty run --samples 1 --out run", "run is a run; choose a place outside."),
    ],
)  # fmt: skip
def test_arguments_that_do_not_go_together(place, options, says, monkeypatch):
    monkeypatch.chdir(place)
    fails(*options.split(), says=f"bayesrnn: {says}" if says[0] != "d" else says)
    assert not (place / "runs").exists()


@pytest.mark.parametrize("command", ["compare", "report", "verify", "prune", "train --from"])
def test_the_model_in_the_package_is_no_run_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(
        *command.split(),
        "pretrained",
        says="pretrained is a model in the package without a run folder",
    )


def test_the_text_of_a_run_is_not_where_it_was(place, tmp_path, monkeypatch):
    config = (place / "run" / "config.toml").read_text()
    moved = shutil.copytree(place / "run", tmp_path / "moved")
    (moved / "config.toml").write_text(config.replace(str(place / "text"), "texts/gone.txt"))
    monkeypatch.chdir(tmp_path)
    cure = "moved was trained on texts/gone.txt, which is not there; give --data with its present place."
    for command in ("evaluate", "calibration", "prune", "train --from", "train --resume --run"):
        fails(*command.split(), "moved", says=cure)
    there = ("--data", place / "text")
    assert run("evaluate", "moved", *there).code == 0
    for command in ("evaluate", "compare"):
        dynamic = (command, "moved", "--dynamic", "--rare-words", "0.25")
        fails(*dynamic, says=cure)
        assert run(*dynamic, *there).code == 0


def test_a_path_with_a_nul_character(place):
    fails("evaluate", "a\0b", says="has a NUL character")
    fails("train", "--data", "a\0b", says="has a NUL character")
    fails("report", place / "run", "--out", "a\0b", says="has a NUL character")


# ---------------------------------------------------------------------- where a command may write

WRITING = {
    "--export": ("prune", "RUN", "--export"),
    "report --out": ("report", "RUN", "--out"),
    "features --out": ("captions", "features", "images", "--out"),
}


@pytest.mark.parametrize("name", WRITING)
def test_only_regular_files_outside_runs_are_replaced(place, name, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    command = [str(place / "run") if part == "RUN" else part for part in WRITING[name]]
    weights = place / "run" / "weights.safetensors"
    before = weights.read_bytes()
    (tmp_path / "link").symlink_to(weights)
    (tmp_path / "inside").symlink_to(place / "run")
    (place / "run" / "sub").mkdir(exist_ok=True)
    (tmp_path / "deep").symlink_to(place / "run" / "sub")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.toml").write_bytes((place / "run/config.toml").read_bytes())
    os.mkfifo(tmp_path / "fifo")
    fails(*command, weights, says="lies inside the run")
    fails(*command, place / "run" / "new.html", says="lies inside the run")
    fails(*command, place / "run" / "sub" / "new", says="lies inside the run")
    fails(*command, tmp_path / "inside" / "weights.safetensors", says="lies inside the run")
    fails(*command, tmp_path / "deep" / "new", says="lies inside the run")
    fails(*command, tmp_path / "unfinished" / "config.toml", says="lies inside the run")
    fails(*command, tmp_path / "link", says="is a link")
    fails(*command, tmp_path / "fifo", says="is no regular file")
    fails(*command, tmp_path, says="is a folder")
    fails(*command, tmp_path / "none" / "file", says="no such folder")
    assert weights.read_bytes() == before
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("prune run --export", "prune --export"),
        ("report run --out", "report"),
        ("captions evaluate run --out", "captions evaluate --out"),
    ],
)
def test_no_file_of_another_kind_is_replaced(place, line, command, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes((place / "run" / "weights.safetensors").read_bytes())
    for path in (place / "words.txt", weights):
        before = path.read_bytes()
        says = f"{path} exists and is no file of `bayesrnn {command}`; choose another name."
        fails(*line.split(), path, says=says)
        assert path.read_bytes() == before


def test_an_earlier_file_of_the_command_or_an_empty_one_is_replaced(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    export, page = tmp_path / "small", tmp_path / "page"
    export.touch()
    for options in ("--drop 80%", "--drop 0.5 --posterior --storage int8", "--drop 0.8"):
        before = export.read_bytes()
        assert run("prune", "run", *options.split(), "--export", export).code == 0
        assert export.read_bytes() != before
    assert run("inspect", export).code == 2  # no posterior
    for _ in range(2):
        assert run("report", "run", *QUICK["report"].split(), "--out", page).code == 0


@pytest.mark.parametrize(
    ("text", "right"),
    [("", True), ("[]", True), ('[\n {\n  "image_id": 1', True), ("[1, 2]", False), ("{}", False)],
)
def test_results_of_captions_are_known_by_their_beginning(tmp_path, text, right):
    path = tmp_path / "results.json"
    path.write_text(text)
    with nullcontext() if right else pytest.raises(ValueError, match="is no file of"):
        check_output(path, RESULTS)


@pytest.mark.parametrize("command", ["prune", "calibration", "uncertainty"])
def test_figures_go_into_no_run_and_over_no_link(place, command, tmp_path):
    fails(command, place / "run", "--out", place / "run" / "figures", says="lies inside the run")
    assert not (place / "run" / "figures").exists()
    (tmp_path / "file").touch()
    fails(command, place / "run", "--out", tmp_path / "file", says="is a file; name a folder")
    pictures = {
        "prune": "pruning-curve.png",
        "calibration": "reliability.png",
        "uncertainty": "told-apart.png",
    }
    (tmp_path / pictures[command]).symlink_to(place / "run" / "config.toml")
    fails(command, place / "run", "--out", tmp_path, says="is a link")


# ---------------------------------------------------------------------- one run among several


def test_one_unfinished_run_does_not_end_a_comparison(place, tmp_path):
    unfinished = tmp_path / "begun"
    unfinished.mkdir()
    for name in ("config.toml", "vocabulary.txt"):
        (unfinished / name).write_bytes((place / "run" / name).read_bytes())
    outcome = run("compare", place / "run", unfinished)
    assert outcome.code == 0, outcome.err
    assert "begun (unfinished)" in outcome.out
    assert len(outcome.out.splitlines()) == 3
    outcome = run("compare", place / "run", unfinished, "--json")
    assert outcome.fault() is None
    assert '"run": "run"' in outcome.out
    assert "begun: unfinished" in outcome.err
    fails("compare", unfinished, says="its first epoch is not finished")
