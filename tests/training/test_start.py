"""Runs that start from the weights of another: --from."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from bayesrnn import methods
from bayesrnn.cli import main
from bayesrnn.files import sha256_of
from bayesrnn.storage import load_tensors
from bayesrnn.tasks.language.experiment import EXPERIMENT
from bayesrnn.tasks.language.trained import open_language_run
from bayesrnn.training import experiment as registry
from bayesrnn.training.experiment import open_run
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run
from bayesrnn.training.start import started
from tests.cli.test_language_model import fail as fail

QUIET = ["--no-tensorboard", "--json"]
FILES = ("config.toml", "metrics.jsonl", "weights.safetensors", "checkpoint.safetensors")


def _prepared(source, method: str):
    """A run that starts from a trained one, before its first step."""
    run = open_language_run(source)
    config = type(run.config).from_values(
        {**vars(run.config), "method": method, "average": 0.0}, "test"
    )
    return started(EXPERIMENT.prepare(config, run), run)


def _best(folder) -> float:
    return min(line["valid_perplexity"] for line in open_language_run(folder).read_metrics("epoch"))


@pytest.mark.parametrize("method", methods.names("language"))
@pytest.mark.parametrize("source", methods.names("language"))
def test_the_mean_predicts_as_the_source_did(trained, source, method):
    ready = _prepared(trained(source), method)
    _, measured = ready.task.validate(ready.method)
    if source == "sgld":  # which predicts with more than its latest weights
        assert measured["valid_perplexity"] == pytest.approx(_best(trained(source)), rel=0.1)
    else:
        assert measured["valid_perplexity"] == pytest.approx(_best(trained(source)), rel=1e-6)


def test_a_posterior_takes_mu_and_rho_and_a_sharpened_one_kappa(trained):
    tensors, _ = load_tensors(trained("bbb") / "weights.safetensors")
    state = _prepared(trained("bbb"), "bbb").method.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
    sharpened, _ = load_tensors(trained("sharpened") / "weights.safetensors")
    state = _prepared(trained("sharpened"), "sharpened").method.state_dict()
    assert all(torch.equal(state[name], sharpened[name]) for name in sharpened)
    state = _prepared(trained("sharpened"), "bbb").method.state_dict()
    assert all(torch.equal(state[name], sharpened[name]) for name in state)
    rho = _prepared(trained("lstm"), "bbb").method.posterior.rho
    assert torch.equal(rho, torch.full_like(rho, rho[0].item()))  # of --sigma-init


def test_the_new_run_has_the_sizes_and_vocabulary_and_says_where_it_is_from(
    trained, text_folder, tmp_path, capsys
):
    run, source = tmp_path / "run", trained("lstm")
    other = shutil.copytree(text_folder, tmp_path / "other")
    (other / "train.txt").write_text("new words\n" + (other / "train.txt").read_text())
    main(
        [
            "train",
            "--from",
            str(source),
            "--data",
            str(other),
            "--epochs",
            "1",
            "--run",
            str(run),
            *QUIET,
        ]
    )
    first = json.loads(capsys.readouterr().out)
    began = open_language_run(source)
    config = open_language_run(run).config
    assert (config.hidden, config.preset, config.method) == (12, "tiny", "bbb")
    assert (config.start, config.start_sha256) == (str(source), sha256_of(began.weights))
    assert (run / "vocabulary.txt").read_bytes() == (source / "vocabulary.txt").read_bytes()
    assert first["valid_perplexity"] < began.read_metrics("epoch")[0]["valid_perplexity"]
    main(["evaluate", str(run), "--json"])
    main(["verify", str(run)])
    main(
        [
            "train",
            "--from",
            str(run),
            "--method",
            "lstm",
            "--epochs",
            "1",
            "--run",
            f"{run}-2",
            *QUIET,
        ]
    )
    assert open_language_run(tmp_path / "run-2").config.data == str(other)


@pytest.mark.parametrize("method", ["bbb", "variational-dropout", "sgld"])
def test_it_resumes_bit_for_bit_without_its_source(trained, text_folder, tmp_path, method):
    source = shutil.copytree(trained("bbb"), tmp_path / "source")
    options = ["--method", method, "--epochs", "2", "--average", "0.5" if method == "bbb" else "0"]
    main(["train", "--from", str(source), *options, "--run", str(tmp_path / "whole"), *QUIET])
    ready = EXPERIMENT.prepare(
        open_language_run(tmp_path / "whole").config, open_language_run(source)
    )
    ready = started(ready, open_language_run(source))
    run = Run(tmp_path / "parts", ready.config, tuple(ready.files), ready.data)
    run.write(ready.files)
    trainer = Trainer(run, ready.task, ready.method)
    for step, _ in enumerate(trainer.run(), start=1):
        trainer.stop = step == 70
    shutil.rmtree(source)
    main(["train", "--resume", "--run", str(tmp_path / "parts"), *QUIET])
    for name in FILES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_run_without_its_first_checkpoint_does_not_begin_from_nothing(trained, tmp_path, fail):
    ready = _prepared(trained("lstm"), "bbb")
    Run(tmp_path / "run", ready.config, tuple(ready.files), ready.data).write(ready.files)
    said = fail("train", "--resume", "--run", tmp_path / "run")
    assert f"remove it, and begin again with --from {trained('lstm')}" in said


def test_what_a_run_cannot_start_from(trained, text_folder, tmp_path, fail):
    run, source = tmp_path / "run", trained("lstm")
    (tmp_path / "empty").mkdir()
    unfinished = shutil.copytree(source, tmp_path / "unfinished")
    (unfinished / "weights.safetensors").unlink()
    damaged = shutil.copytree(source, tmp_path / "damaged")
    data = bytearray((damaged / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (damaged / "weights.safetensors").write_bytes(data)
    for arguments, message in [
        (["train", "--from", tmp_path / "none"], "no such run folder"),
        (["train", "--from", tmp_path / "empty"], "not a run"),
        (["train", "--from", unfinished], "has no weights yet: its first epoch is not finished"),
        (["train", "--from", damaged], "is damaged: its checksum does not match"),
        (["train", "--from", source, "--hidden", "13"], f"hidden = 13, but {source}, which"),
        (["train", "--from", source, "--vocabulary", "9"], "vocabulary = 9, but"),
        (["train", "--from", source, "--tied"], "tied = True, but"),
        (["mnist", "--from", source], "this needs one of `bayesrnn mnist`"),
        (["captions", "train", "--from", source], "this needs one of `bayesrnn captions train`"),
    ]:
        assert message in fail(*arguments, "--run", run)
        assert not run.exists()
    assert "--from is for a new run" in fail("train", "--resume", "--run", source, "--from", source)


def test_an_experiment_that_does_not_offer_it(monkeypatch, tmp_path, fail):
    monkeypatch.setattr(registry, "_MODULES", dict(registry._MODULES))
    registry.register("toy", "tests.tasks.toy_experiment")
    main(["toy", "--epochs", "1", "--run", str(tmp_path / "run"), *QUIET])
    said = fail("toy", "--from", tmp_path / "run", "--run", tmp_path / "new")
    assert "a run of toy cannot start from another; leave out --from" in said
    assert not (tmp_path / "new").exists()


def test_digits(tmp_path, capsys):
    pytest.importorskip("sklearn")
    small = ["--hidden", "16", "--epochs", "3", *QUIET]
    main(["mnist", "--method", "sgd", *small, "--run", str(tmp_path / "sgd")])
    capsys.readouterr()
    epochs = open_run(tmp_path / "sgd").read_metrics("epoch")
    before = min(epochs, key=lambda line: line["valid_error"])
    start = ["--from", str(tmp_path / "sgd"), "--lr", "1e-9"]
    main(["mnist", *start, "--epochs", "1", *QUIET, "--run", str(tmp_path / "bbb")])
    after = json.loads(capsys.readouterr().out)
    assert after["valid_nats"] == pytest.approx(before["valid_nats"], rel=1e-3)
