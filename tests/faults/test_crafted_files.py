"""Files made to harm: with a right checksum, and with headers and settings that no writer of ours makes."""

from __future__ import annotations

import json
import resource
import shutil
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.storage import load_tensors, save_tensors
from tests.faults.commands import SEED, Outcome, cases, run

NASTY: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        10**7,
        10**19,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        [],
        {},
    ),
    *([1], [[[]]], {"a": 1}, "\x1b[31m", "w" * 10_000, ["<unk>"], ["\x1b[31m", "<eos>", "<unk>"]),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run, a model exported from it and a saved posterior."""
    folder = tmp_path_factory.mktemp("crafted")
    (folder / "text").mkdir()
    random = Random(0)
    for split in ("train", "valid", "test"):
        lines = [" ".join(random.choices([f"w{i}" for i in range(8)], k=6)) for _ in range(20)]
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    sizes = "--hidden 4 --layers 1 --batch-size 2 --unroll 5 --epochs 1 --no-tensorboard --json"
    train = f"train --data {folder}/text --run {folder}/run {sizes}".split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESRNN_CACHE", str(folder / "cache"))
        assert run(*train).fault() is None
        assert run("prune", folder / "run", "--export", folder / "small").code == 0
    prior = bayesrnn.Grouped(
        {"weight": bayesrnn.Normal(0.5), "*": bayesrnn.ScaleMixture(0.5, 1, 0.1)}
    )
    bayesrnn.Posterior(nn.Linear(3, 2), prior).save(folder / "posterior")
    return folder


def _commands(path: Path) -> list[list[str]]:
    """The commands that read a file."""
    if path.name == "posterior":
        return [["inspect", str(path)], ["inspect", str(path), "--json"]]
    if path.name == "small":
        return [["evaluate", str(path), "--json"], ["generate", str(path), "--words", "3"]]
    folder = str(path.parent)
    resume = ["train", "--resume", "--run", folder, "--epochs", "2", "--no-tensorboard", "--json"]
    return [
        ["evaluate", folder, "--samples", "1", "--json"],
        ["generate", folder, "--words", "3"],
        ["compare", folder, "--json"],
        resume,
    ]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        place
        for key, child in children
        for place in (
            (*path, key),
            *(_paths(child, (*path, key)) if isinstance(child, dict | list) else ()),
        )
    ]


def _mutated(header: dict[str, Any], random: Random) -> dict[str, Any]:
    """A header with an entry removed, added or replaced."""
    header = deepcopy(header)
    *above, last = random.choice(_paths(header))
    inside: Any = header
    for key in above:
        inside = inside[key]
    kind = random.random()
    if kind < 0.25 and last != "data":  # the default text takes long to read
        del inside[last]
    elif kind < 0.35 and isinstance(inside, dict):
        inside["unknown"] = random.choice(NASTY)
    else:
        inside[last] = random.choice(NASTY)
    return header


def _craft_tensors(path: Path, random: Random) -> None:
    """Change a header or a tensor and write the file again, with its checksum."""
    tensors, header = load_tensors(path)
    if random.random() < 0.7:
        return save_tensors(path, tensors, _mutated(header, random))
    name = random.choice(list(tensors))
    tensor = tensors[name]
    changes = [
        tensor.double(),
        tensor.to(torch.int8),
        tensor.new_zeros(0),
        tensor.new_zeros(()),
        torch.cat([tensor.flatten(), tensor.flatten()]),
        torch.full(tensor.shape, float("nan")),
        torch.full_like(tensor.float(), 1e30),
        tensor[None],
        torch.tensor([10**6, 10**6]),
        torch.tensor([-1, 2]),
        torch.tensor([2**62, 2**62]),
        torch.zeros(0, 2**40),
    ]
    if random.random() < 0.2:
        del tensors[name]
    else:
        tensors[name] = random.choice(changes)
    if random.random() < 0.2:
        tensors["extra\x1b[31m"] = torch.zeros(1)
    return save_tensors(path, tensors, header)


def _craft_toml(path: Path, random: Random) -> None:
    lines = path.read_text().splitlines()
    index = random.randrange(len(lines))
    name = lines[index].partition(" = ")[0]
    values = [
        *("nan", "inf", "-1", "0", "10000000", "1" * 30, "1" * 5000, "1e400", '""', '"x"', "true"),
        *("[" * 5000, "{a=" * 3000, "[1]", '"\\u001b[31m"', '"~nosuchuser"', "1979-05-27", "65536"),
    ]
    choice = random.random()
    if choice < 0.15 and name != "data":  # the default text takes long to read
        del lines[index]
    elif choice < 0.25:
        lines.append(
            random.choice(["a." * 20_000 + "b = 1", '"\\u001b[31m" = 1', "x", "[a]", "\x1b"])
        )
    else:
        lines[index] = f"{name} = {random.choice(values)}"
    path.write_text("\n".join(lines) + "\n")


FILES = ("posterior", "small", "run/config.toml", "run/weights.safetensors")


def _crafted(made: Path, scratch: Path, name: str, random: Random) -> Outcome:
    """Craft a file, in a folder of its own, and run a command on it."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    path = scratch / name
    if "/" in name:
        shutil.copytree(made / "run", scratch / "run")
    else:
        shutil.copy(made / name, path)
    if path.suffix == ".toml":
        _craft_toml(path, random)
    else:
        _craft_tensors(path, random)
    return run(*random.choice(_commands(path)))


def test_crafted_files(made, tmp_path):
    """No file is a traceback, a hang, invalid JSON, a command to the terminal or much memory."""
    random, faults = Random(SEED), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(cases(120)):
        name = FILES[number % len(FILES)]
        state = random.getstate()
        outcome = _crafted(made, tmp_path / "case", name, random)
        if outcome.fault():
            faults.append(f"{name} {hash(state) % 10**6}: {outcome}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500_000, f"{grown / 1e6:.1f} GB more"  # kilobytes


def _fails(*arguments: object, says: str) -> None:
    outcome = run(*arguments)
    assert outcome.fault() is None, str(outcome)
    assert outcome.code == 2, str(outcome)
    assert says in outcome.err, outcome.err


@pytest.fixture
def copies(made, tmp_path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    for name in ("small", "posterior"):
        shutil.copy(made / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("small", {"packed": None}, "'packed' in its header must be list"),
        ("small", {"sizes": {}}, "its header has no 'vocabulary'"),
        ("small", {"sizes": {"layers": 10**7}}, "its header has no"),
        ("small", {"vocabulary": [1, 2]}, "must be a list of names"),
        ("small", {"vocabulary": ["a", "b"]}, "sizes in its header are not those of its weights"),
        ("small", {"config": []}, "'config' in its header must be dict"),
        ("small", {"config": {"hidden": 10**12}}, "must lie between 1 and 65,536"),
        ("small", {"tied": {"a": "b"}}, "is tied to 'b', which it lacks"),
        ("posterior", {"select": 1}, "'select' in its header must be list"),
        ("posterior", {"select": ["none"]}, "has no weights 'mu.none'"),
        ("posterior", {"prior": []}, "'prior' in its header must be dict or null"),
    ],
)
def test_a_wrong_entry_of_a_header(copies, file, change, says):
    tensors, header = load_tensors(copies / file)
    save_tensors(copies / file, tensors, {**header, **change})
    command = "inspect" if file == "posterior" else "evaluate"
    _fails(command, copies / file, says=says)


def test_a_missing_entry_of_a_header(copies):
    tensors, header = load_tensors(copies / "small")
    for name in ("packed", "tied", "sizes", "config", "vocabulary"):
        rest = {key: value for key, value in header.items() if key != name}
        save_tensors(copies / "small", tensors, rest)
        _fails("evaluate", copies / "small", says=f"its header has no '{name}'")


def test_ten_million_layers_of_an_exported_model(copies):
    tensors, header = load_tensors(copies / "small")
    header["sizes"]["layers"] = 10**7
    save_tensors(copies / "small", tensors, header)
    _fails("generate", copies / "small", says="sizes in its header are not those of its weights")


def test_a_shape_of_a_million_by_a_million(copies):
    tensors, header = load_tensors(copies / "small")
    packed = next(name for name in tensors if name.endswith(".shape"))
    tensors[packed] = torch.tensor([10**6, 10**6])
    save_tensors(copies / "small", tensors, header)
    _fails("evaluate", copies / "small", says="does not fit the rest")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("hidden = 65536", "which the files beside it cannot hold"),
        ("layers = 1000", "which the files beside it cannot hold"),
        ("layers = 10000000", "layers = 10000000 must lie between 1 and 1,000"),
        ("hidden = " + "1" * 30, "must lie between 1 and 65,536"),
        ("lr = nan", "lr = nan must be a finite number"),
        ("lr = " + "9" * 400, "must lie between"),
        ("seed = " + "9" * 5000, "is not valid TOML"),
        ("lr = " + "[" * 5000, "is too deep"),
        ("a." * 20_000 + "b = 1", "has more than 300 dots"),
        ("task = [1]", "must be the name of an experiment"),
    ],
)
def test_settings_that_no_run_has(copies, setting, says):
    config = copies / "run" / "config.toml"
    name = setting.partition(" = ")[0]
    kept = [line for line in config.read_text().splitlines() if not line.startswith(f"{name} =")]
    config.write_text("\n".join([*kept, setting]) + "\n")
    for command in ("evaluate", "compare"):
        _fails(command, copies / "run", says=says)
        _fails(command, copies / "run", says=str(config))


def test_a_deep_header(copies):
    """Deeper than JSON can be read: not our file."""
    import safetensors.torch

    metadata = {"bayesrnn": '{"header": ' + "[" * 100_000 + "]" * 100_000 + ', "sha256": ""}'}
    safetensors.torch.save_file({"a": torch.zeros(1)}, copies / "small", metadata)
    _fails("inspect", copies / "small", says="its checksum does not match")
    _fails("evaluate", copies / "small", says="its checksum does not match")


def test_nan_in_a_model_is_null_in_json(copies):
    """A model that predicts nan: JSON has null for it, and nothing is generated."""
    tensors, header = load_tensors(copies / "small")
    tensors["out.bias"] = torch.full_like(tensors["out.bias"], float("nan"))
    save_tensors(copies / "small", tensors, header)
    outcome = run("evaluate", copies / "small", "--json")
    assert outcome.fault() is None, str(outcome)
    assert json.loads(outcome.out)["perplexity"] is None
    _fails("generate", copies / "small", "--words", "3", says="predicts nan")
