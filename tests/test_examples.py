"""Every example runs, and shows what it claims."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def _run(*arguments: str, cwd: Path, warnings: str = "error") -> str:
    command = [sys.executable, "-W", warnings, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_timeseries_is_less_sure_in_the_gap(tmp_path):
    output = _run(str(EXAMPLES / "timeseries.py"), "--passes", "100", cwd=tmp_path)
    own = {
        name.strip(): float(value)
        for name, value in re.findall(r"^(.*?)  +sd of the weights ([\d.]+)", output, re.MULTILINE)
    }
    assert own["in the gap"] > 1.5 * own["before the gap"]
    assert own["in the gap"] > 1.5 * own["after the gap"]
    assert (tmp_path / "timeseries.png").stat().st_size > 20_000


def test_characters_runs(tmp_path):
    output = _run(str(EXAMPLES / "characters.py"), "--passes", "1", "--size", "9000", cwd=tmp_path)
    assert "Bayesian LSTM" in output
    assert "bits per character" in output


def test_models_of_others_enter_the_benchmark(tmp_path):
    arguments = ["uncertainty.py", "--steps", "5", "--words", "800"]
    arguments[0] = str(EXAMPLES / arguments[0])
    output = _run(*arguments, cwd=tmp_path, warnings="default")  # transformers' imports warn
    rows = {tuple(line.split()[:2]): line.split() for line in output.splitlines()}
    assert float(rows["reversed", "trigram"][-3]) > 0.7  # told apart by -log p
    assert ("shuffled", "transformer") in rows


def test_a_forecast_that_is_fed_its_mean_is_too_sure(tmp_path):
    arguments = ["--passes", "12", "--stretches", "300"]
    output = _run(str(EXAMPLES / "forecast.py"), *arguments, cwd=tmp_path)
    inside = {
        name: [float(share) for share in re.findall(r"([\d.]+)%", row)]
        for name, row in re.findall(r"(fed its mean|own paths|conformal)(.*)", output)
    }
    assert inside["own paths"][2] > inside["fed its mean"][2] + 8
    assert all(80 < share < 98 for share in inside["conformal"])
    assert (tmp_path / "forecast.png").stat().st_size > 20_000


def test_an_adapter_has_uncertainty_and_a_small_file(tmp_path):
    pytest.importorskip("peft")
    arguments = [str(EXAMPLES / "adapters.py"), "--steps", "12"]
    output = _run(*arguments, cwd=tmp_path, warnings="default")  # peft's imports warn
    assert len(re.findall(r"mutual information \d\.\d+ nats a character", output)) == 3
    adapter, network = map(int, re.findall(r"(\d+) kB", output))
    assert adapter < network / 5
    assert (tmp_path / "adapter.safetensors").stat().st_size < 1024 * (adapter + 1)


def _rows(output: str) -> dict[str, list[float]]:
    """The figures of each row of the last table, without their spread, by the row's name."""
    rows = re.findall(r"^ (\S.*?)  +(\d.*)$", output, re.MULTILINE)
    return {name: [float(x) for x in re.findall(r"([\d.]+) ±", row)] for name, row in rows}


def test_what_was_learnt_as_prior_keeps_the_first_task(tmp_path):
    arguments = ["--seeds", "1", "--epochs", "40"]
    output = _run(str(EXAMPLES / "two_tasks.py"), *arguments, cwd=tmp_path)
    accuracy = _rows(output)  # on task 1 before task 2, on task 1 after it, on task 2
    assert accuracy["Bayesian"][1] > accuracy["plain, tuned"][1] + 5
    assert accuracy["Bayesian"][2] > 85
    assert (tmp_path / "two_tasks.png").stat().st_size > 20_000


def test_a_prior_around_the_trained_weights_is_the_one_for_fine_tuning(tmp_path):
    output = _run(str(EXAMPLES / "fine_tuning.py"), "--seeds", "1", cwd=tmp_path)
    nats = _rows(output.partition("accuracy of held-out")[0])
    centred, zero = nats["Centred(trained, sigma)"], nats["Normal(0.1)"]
    assert all(one < other for one, other in zip(centred[:3], zero[:3], strict=True))


def test_every_example_has_a_test():
    tested = "".join(file.read_text() for file in Path(__file__).parent.glob("test_examples*.py"))
    assert all(example.name in tested for example in EXAMPLES.glob("*.py"))
