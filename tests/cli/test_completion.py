"""`bayesrnn completion`: what a shell offers, asked of a real one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from bayesrnn.cli import COMMANDS, completion, main
from bayesrnn.tasks import experiments
from bayesrnn.tasks.language.data.sources import NAMED
from bayesrnn.training.settings import Settings

ALL = [*(e.command for e in experiments()), *COMMANDS]

ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_bayesrnn
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "bayesrnn.bash"
    path.write_text(completion.script("bash"))
    return path


@pytest.fixture
def offered(script, tmp_path):
    """What bash offers for the last of these words."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")

    def ask(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", ASK, "bash", str(script), "bayesrnn", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return set(done.stdout.splitlines()) - {""}

    return ask


def test_commands(offered):
    assert offered("") == {*(name.split()[0] for name in ALL), "--help", "--version"}
    assert offered("ca") == {"calibration", "captions"}
    assert offered("captions", "") == {n.split()[1] for n in ALL if n.startswith("captions ")}
    assert offered("captions", "e") == {"evaluate"}
    assert offered("nonsense", "") == {"--help"}


@pytest.mark.parametrize("name", ALL)
def test_options_are_those_of_the_help(name, offered, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    rows = re.findall(r"^[│ ] ((?:-h, )?--\S.*?)  ", capsys.readouterr().out, re.M)
    right = {option for row in rows for option in re.findall(r"--[a-z0-9-]+", row)}
    assert offered(*name.split(), "-") == right
    assert right - {"--help"} or name == "completion"


def test_options_that_begin_with_what_was_typed(offered):
    assert offered("train", "--data", "pydocs", "--sgld") == {
        "--sgld-prior-sigma",
        "--sgld-samples",
    }
    assert offered("mnist", "--sgld") == set()
    assert offered("captions", "train", "--feat") == {"--features", "--feature-size"}


def test_values(offered):
    assert offered("train", "--prior", "") == set(Settings.CHOICES["prior"])
    assert offered("train", "--method", "s") == {"sgld", "sharpened"}
    assert offered("mnist", "--method", "s") == {"sgd", "sharpened"}
    assert offered("evaluate", "run", "--split", "t") == {"train", "test"}
    assert offered("evaluate", "run", "--split", "=", "t") == {"train", "test"}
    assert offered("completion", "") == {"bash", "zsh"}
    assert offered("train", "--seed", "") == set()


def test_files(offered, tmp_path):
    for name in ("one run", "other", "text.txt"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "inside").write_text("")
    files = {"one run", "other", "text.txt"}
    assert offered("compare", "") == offered("captions", "describe", "run", "") == files
    assert offered("evaluate", "") == {*files, "pretrained"}
    assert offered("compare", "other", "o") == {"one run", "other"}
    assert offered("train", "--data", "t") == {"text.txt"}
    assert offered("train", "--from", "other/") == {"other/inside"}
    assert offered("train", "--run", "=", "") == files
    assert offered("train", "--data", "=") == {*files, *NAMED}
    assert offered("report", "run", "--other", "p") == {"pydocs", "ptb"}
    assert offered("list", "--json", "") == offered("list", "--no-json", "") == files
    assert "one run" not in offered("train", "")  # which takes options only


def test_the_command_prints_it_without_torch(script):
    code = (
        "import sys\nfrom bayesrnn.cli import main\nmain(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == script.read_text()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_loads_it(tmp_path):
    path = tmp_path / "bayesrnn.zsh"
    path.write_text(completion.script("zsh"))
    load = f"autoload -U compinit && compinit -u && source {path} && whence -w _bayesrnn"
    done = subprocess.run(["zsh", "-fc", load], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "_bayesrnn: function"
    assert done.stderr == ""
