from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.cli import main


def test_inspect(tmp_path, capsys):
    path = tmp_path / "p.safetensors"
    posterior = bayesrnn.Posterior(nn.Linear(4, 3), bayesrnn.Normal(0.5), sigma_init=0.25)
    with torch.no_grad():
        posterior.mu.fill_(1.0)
    posterior.save(path)
    main(["inspect", str(path), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["weights"] == 15
    assert summary["prior"] == {"name": "Normal", "sigma": 0.5}
    assert summary["tensors"][0]["snr_median"] == pytest.approx(4, rel=1e-5)
    main(["inspect", str(path)])
    assert "15 Bayesian weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"", "damaged"), (b"not a posterior at all", "damaged")],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(tmp_path, capsys, content, message):
    path = tmp_path / "p.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", str(path)])
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert captured.out == ""
    with pytest.raises(ValueError, match=message):
        main(["inspect", str(path), "--debug"])


HELP_WITHOUT_TORCH = """
import sys
from bayesrnn.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["inspect", "--help"], []])
def test_help_and_version_do_not_wait_for_torch(arguments):
    command = [sys.executable, "-c", HELP_WITHOUT_TORCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "bayesrnn" in done.stdout


@pytest.mark.parametrize("arguments", ["--help", "train --help", "completion bash"])
def test_a_reader_that_has_left_is_no_error(arguments):
    command = [sys.executable, "-m", "bayesrnn", *arguments.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""


def test_help_and_version_as_words(capsys):
    main(["--help"])
    shown = capsys.readouterr().out
    main(["help"])
    assert capsys.readouterr().out == shown
    with pytest.raises(SystemExit):
        main(["version"])
    assert "did you mean --version?" in capsys.readouterr().err


def test_nothing_that_the_package_offers_loads_the_compiler():
    code = (
        "import sys, bayesrnn\n"
        "for name in bayesrnn.__all__: getattr(bayesrnn, name)\n"
        "assert 'torch' in sys.modules\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_lists_what_it_offers():
    """Everything listed is what its own module calls by that name, and the lists agree."""
    for name, module in bayesrnn._HOME.items():
        assert getattr(bayesrnn, name) is getattr(import_module(module), name)
        assert name in dir(bayesrnn)
    typed = re.findall(
        r"^    from \S+ import \w+ as (\w+)$", Path(bayesrnn.__file__).read_text(), re.M
    )
    assert sorted([*typed, "__version__"]) == sorted(bayesrnn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bayesrnn.nothing  # noqa: B018
