"""The commands that analyse runs of every experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayesrnn.cli import main
from bayesrnn.tasks.language import trained as trained_models
from tests.cli.test_language_model import fail as fail
from tests.cli.test_mnist import digits_run as digits_run


@pytest.fixture
def rows(capsys):
    """The lines of JSON that a command prints."""

    def run(*arguments: object) -> list[dict]:
        capsys.readouterr()
        main([*map(str, arguments), "--json"])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_a_model_by_name(rows, trained, monkeypatch, tmp_path):
    """The name of a model is for `open_trained` to understand: no command looks for a file of that name."""
    run, real = trained("bbb"), trained_models.open_trained

    def opened(*paths: Path):
        return real(*(run if str(path) == "pretrained" else path for path in paths))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trained_models, "open_trained", opened)
    for words in (
        ["generate", "--words", 3],
        ["score", "--text", "w1 w2"],
        ["evaluate", "--samples", 2],
        ["calibration", "--samples", 2],
        ["uncertainty", "--samples", 1, "--noise", 0.1],
    ):
        assert rows(words[0], "pretrained", *words[1:]) == rows(words[0], run, *words[1:])


@pytest.mark.parametrize("command", ["generate", "score", "evaluate", "calibration", "uncertainty"])
def test_help_says_what_a_run_may_be(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "written by `bayesrnn prune --export`" in shown
    assert "pretrained" in shown


# ---------------------------------------------------------------------- digits


def test_evaluate_digits(rows, digits_run, capsys):
    run = digits_run("bbb")
    mean, sampled = rows("evaluate", run, "--samples", 3)
    ((compared,),) = rows("compare", run, "--samples", 3)
    assert (mean["way"], sampled["way"]) == ("mean", "3 samples")
    assert mean["error"] == compared["test_error"]
    assert mean["nats"] == compared["test_nats"]
    assert sampled["error"] == compared["test_error_samples"]
    assert mean["examples"] == 360
    (valid,) = rows("evaluate", run, "--split", "valid")
    assert valid["error"] == compared["valid_error"]
    main(["evaluate", str(run)])
    assert f"error {mean['error']:8.2%}" in capsys.readouterr().out


def test_calibration_of_digits(rows, digits_run, tmp_path, capsys):
    run, plain = digits_run("bbb"), digits_run("sgd")
    found = rows("calibration", run, plain, "--samples", 2, "--out", tmp_path)
    assert [(row["run"], row["samples"]) for row in found] == [("bbb", 0), ("bbb", 2), ("sgd", 0)]
    (evaluated,) = rows("evaluate", plain)
    assert found[2]["accuracy"] == pytest.approx(1 - evaluated["error"])
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    valid = rows("calibration", run, "--samples", 0, "--split", "valid")
    assert valid[0]["words"] != found[0]["words"]


def test_pruning_of_digits(rows, digits_run, tmp_path, capsys):
    run, plain = digits_run("bbb"), digits_run("sgd")
    (found,) = rows("prune", run, "--baseline", plain, "--split", "test", "--out", tmp_path)
    assert list(found["curves"]) == ["signal to noise", "magnitude", "magnitude, sgd"]
    curve = {point["drop"]: point["error"] for point in found["curves"]["signal to noise"]}
    assert curve[0.0] == rows("evaluate", run)[0]["error"]
    assert curve[0.8] == found["error"]
    assert curve[0.995] > 0.5
    assert found["curves"]["magnitude, sgd"][0]["error"] == rows("evaluate", plain)[0]["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["pruning-curve.png"]
    (limited,) = rows("prune", run, "--max-loss", "10%", "--split", "test")
    assert limited["drop"] > 0
    assert limited["error"] <= 1.1 * curve[0.0]
    main(["prune", str(run)])
    shown = capsys.readouterr().out
    assert "valid error by share of weights dropped, smallest first by:" in shown
    assert "80.00% dropped: error" in shown


def test_uncertainty_of_digits(rows, digits_run, tmp_path, capsys):
    run, plain = digits_run("bbb"), digits_run("sgd")
    found = rows("uncertainty", run, plain, "--samples", 1, 3, "--out", tmp_path)
    upright = {(row["model"], row["samples"]): row for row in found if row["angle"] == 0}
    assert list(upright) == [("bbb", 0), ("bbb", 1), ("bbb", 3), ("sgd", 0)]
    assert upright["sgd", 0]["error"] == pytest.approx(rows("evaluate", plain)[0]["error"])
    assert upright["bbb", 3]["mutual_information"] > 0
    turned = next(row for row in found if row["angle"] == 45 and row["model"] == "sgd")
    assert turned["entropy_gap"] > 0
    names = {"entropy-by-angle.png", "error-by-angle.png", "mi-by-angle.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    main(["uncertainty", str(plain), "--out", str(tmp_path / "plain")])
    assert "test digits rotated" in capsys.readouterr().out
    assert not (tmp_path / "plain" / "mi-by-angle.png").exists()  # there is none


def test_inspect_a_run(rows, digits_run, trained, fail):
    for run, tensors in [(digits_run("bbb"), 6), (trained("sharpened"), 10), (trained("bbb"), 10)]:
        (by_run,) = rows("inspect", run)
        (by_file,) = rows("inspect", run / "weights.safetensors")
        assert by_run == by_file
        assert len(by_run["tensors"]) == tensors
    assert "a run of method lstm, which has no posterior" in fail("inspect", trained("lstm"))
    assert "not a run" in fail("inspect", trained("lstm").parent)
    file = trained("lstm") / "weights.safetensors"
    assert "has no posterior; give a file of Posterior.save" in fail("inspect", file)


def test_inspect_the_model_in_the_package(rows, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (summary,) = rows("inspect", "pretrained")
    assert summary["weights"] == sum(row["weights"] for row in summary["tensors"]) > 600_000


def test_what_digits_do_not_have(fail, digits_run, trained, tmp_path):
    run, out = digits_run("bbb"), tmp_path / "out"
    language = trained("bbb")
    cases = [
        (("evaluate", run, "--dynamic"), "--dynamic is not for runs of `bayesrnn mnist`"),
        (("evaluate", run, "--rare-words", 0.25), "--rare-words is not for runs"),
        (("evaluate", run, "--decay", 0.01), "--decay is not for runs"),
        (("evaluate", run, "--streams", 5), "--streams is not for runs"),
        (("evaluate", digits_run("sgd"), "--samples", 3), "nothing to sample"),
        (("compare", run, "--dynamic"), "--dynamic is not for runs of `bayesrnn mnist`"),
        (("calibration", run, "--words", 100, "--out", out), "--words is not for runs"),
        (("calibration", run, language), "give runs of one experiment"),
        (("calibration", run, tmp_path / "none"), "give runs of one experiment"),
        (("uncertainty", run, "--other", "pydocs", "--out", out), "--other is not for runs"),
        (("uncertainty", run, language), "give runs of one experiment"),
        (("prune", run, "--export", tmp_path / "x"), "--export is not for runs"),
        (("prune", run, "--baseline", language), "give runs of one experiment"),
        (("prune", digits_run("sgd"), "--out", out), "method sgd, which has no posterior"),
        (("prune", run, "--data", tmp_path), "neither train-images"),
        (("score", run, "--text", "a"), "is a run of `bayesrnn mnist`"),
        (("generate", run), "is a run of `bayesrnn mnist`"),
    ]
    for arguments, message in cases:
        assert message in fail(*arguments), arguments
    assert list(tmp_path.iterdir()) == []
