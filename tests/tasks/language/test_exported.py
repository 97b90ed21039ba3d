"""A posterior in one small file, and the one in the package."""

import pytest
import torch

from bayesrnn.cli import main
from bayesrnn.pruning import by_signal_to_noise
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.exported import Exported
from bayesrnn.tasks.language.trained import PRETRAINED, open_folder, open_trained


@pytest.fixture
def model(trained):
    (found,) = open_trained(trained("bbb"))
    return found


def _export(model, path, storage="sparse", drop=0.0):
    kept = by_signal_to_noise(model.method.posterior).kept(drop)
    return Exported.write_posterior(
        path, model.method.posterior, kept, model.config, model.vocabulary, storage
    )


def test_sparse_is_exact(model, tmp_path):
    _export(model, tmp_path / "file")
    (again,) = open_trained(tmp_path / "file")
    before, after = model.method.state_dict(), again.method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.method.posterior.prior == model.method.posterior.prior


def test_dropped_means_are_zero_and_keep_their_sigma(model, tmp_path):
    _export(model, tmp_path / "file", drop=0.6)
    posterior = open_trained(tmp_path / "file")[0].method.posterior
    share = (posterior.mu == 0).double().mean().item()
    assert share == pytest.approx(0.6, abs=0.01)
    assert torch.equal(posterior.rho, model.method.posterior.rho)
    assert (model.method.posterior.mu == 0).double().mean() < 0.01  # the run itself is as it was


def test_int8_predicts_nearly_the_same(model, tmp_path):
    exported = _export(model, tmp_path / "file", "int8")
    tokens = model.tokens("test")
    for samples in (0, 5):
        before = perplexity(model.method, tokens, samples=samples).value
        after = perplexity(exported.load_method(), tokens, samples=samples).value
        assert after == pytest.approx(before, rel=0.01)


def test_commands_take_it(model, tmp_path, capsys):
    main(
        f"prune {model.path} --drop 0.5 --posterior --storage int8 --export {tmp_path}/file".split()
    )
    assert "50.0% dropped, int8" in capsys.readouterr().out
    main(["evaluate", str(tmp_path / "file"), "--samples", "3"])
    assert "3 samples" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is one file; this needs the folder of a run"):
        open_folder(tmp_path / "file")


def test_the_model_in_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = open_trained(PRETRAINED)
    assert found.name == "pretrained"
    assert found.config.data == "pydocs"
    assert found.path == PRETRAINED
    tokens = found.tokens("test")[:2001]
    untrained = len(found.vocabulary)
    assert perplexity(found.method, tokens, samples=3, streams=20).value < untrained / 10
    assert found.method.available([10]) == [10]


def test_a_folder_of_that_name_comes_first(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PRETRAINED.symlink_to(trained("lstm"))
    assert open_trained(PRETRAINED)[0].config.method == "lstm"
