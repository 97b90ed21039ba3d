"""Files: exact, atomic, and damaged ones refused with nothing changed."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from torch import nn

import bayesrnn
from bayesrnn.files import write_atomically
from bayesrnn.storage import load_tensors, save_tensors

PRIOR = bayesrnn.ScaleMixture(0.25, 0.5, 0.01)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "posterior.safetensors"
    bayesrnn.Posterior(nn.Linear(4, 3), PRIOR).save(path)
    return path


def test_the_file_says_what_it_holds(saved):
    with safetensors.safe_open(saved, "pt") as file:
        header = json.loads(file.metadata()["bayesrnn"])["header"]
        assert set(file.keys()) == {"mu.weight", "mu.bias", "rho.weight", "rho.bias"}
    assert header["prior"] == {"name": "ScaleMixture", "pi": 0.25, "sigma1": 0.5, "sigma2": 0.01}
    assert header["select"] == ["weight", "bias"]


def test_every_single_damaged_byte_is_noticed(saved):
    good = saved.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x41
        saved.write_bytes(bad)
        with pytest.raises(ValueError, match=r"damaged|not written by bayesrnn"):
            load_tensors(saved)


@pytest.mark.parametrize("keep", [0, 3, 8, 100, -1])
def test_a_truncated_file_is_refused_and_the_model_untouched(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    model = nn.Linear(4, 3)
    parameters, values = list(model.parameters()), model.weight.detach().clone()
    with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
        bayesrnn.Posterior.load(saved, model)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert torch.equal(values, model.weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(4, 2), r"'mu.weight' has shape \(3, 4\), the model needs \(2, 4\)"),
        (nn.Linear(4, 3, bias=False), "'bias'; this model has none of that name, but weight"),
        (nn.Linear(4, 3).requires_grad_(False), "'weight', which are frozen in this model"),
        (nn.Linear(4, 3).double(), "is torch.float32, the model has torch.float64"),
        (nn.Bilinear(4, 1, 3), r"'mu.weight' has shape \(3, 4\)"),
        (nn.Sequential(nn.Linear(4, 3)), "none of that name, but 0.bias, 0.weight"),
    ],
)
def test_another_architecture_is_refused_untouched(saved, model, message):
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match=message):
        bayesrnn.Posterior.load(saved, model)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_a_model_with_more_to_it_is_refused(saved):
    class More(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("extra", torch.zeros(2))

    with pytest.raises(ValueError, match=r"has no 'model\.extra'"):
        bayesrnn.Posterior.load(saved, More())


def test_a_bad_state_dict_changes_nothing():
    posterior = bayesrnn.Posterior(nn.Linear(4, 3), PRIOR)
    before = {k: v.clone() for k, v in posterior.state_dict().items()}
    good = {k: v + 1 for k, v in before.items()}
    for bad, message in [
        ({k: v for k, v in good.items() if k != "rho.bias"}, "has no 'rho.bias'"),
        ({**good, "rho.bias": torch.zeros(5)}, "'rho.bias' has shape"),
        ({**good, "mu.other": torch.zeros(5)}, "has 'mu.other', which this model does not have"),
    ]:
        with pytest.raises(ValueError, match=message):
            posterior.load_state_dict(bad)
        assert all(torch.equal(v, before[k]) for k, v in posterior.state_dict().items())
    with pytest.raises(ValueError, match="leave the block first"), posterior.sample():
        posterior.load_state_dict(good)
    posterior.load_state_dict(good)
    assert all(torch.equal(v, good[k]) for k, v in posterior.state_dict().items())


def test_a_prior_of_ones_own_must_be_given_again(tmp_path):
    prior = torch.distributions.Laplace(0.0, 1.0)
    bayesrnn.Posterior(nn.Linear(2, 2), prior).save(tmp_path / "p")
    with pytest.raises(ValueError, match="prior of type Laplace.*pass it as prior="):
        bayesrnn.Posterior.load(tmp_path / "p", nn.Linear(2, 2))
    bayesrnn.Posterior.load(tmp_path / "p", nn.Linear(2, 2), prior=prior)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_tensors(tmp_path / "none")
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "a")
    with pytest.raises(ValueError, match="not written by bayesrnn"):
        load_tensors(tmp_path / "a")
    save_tensors(tmp_path / "b", {"a": torch.zeros(1)}, {"format": "bayesrnn-posterior-9"})
    with pytest.raises(ValueError, match="another version"):
        bayesrnn.Posterior.load(tmp_path / "b", nn.Linear(2, 2))


def test_a_failed_write_keeps_the_old_file_and_no_rubbish(saved):
    good = saved.read_bytes()

    def fail(temporary):
        with open(temporary, "wb") as file:
            file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(saved, fail)
    assert saved.read_bytes() == good
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
    with pytest.raises(ValueError, match="is a folder; name a file"):
        write_atomically(saved.parent, fail)
    with pytest.raises(ValueError, match="is a folder; name a file"):
        load_tensors(saved.parent)
    with pytest.raises(ValueError, match="no such folder"):
        write_atomically(saved.parent / "none" / "file", fail)


def test_extra_state_that_cannot_be_saved_is_refused(tmp_path):
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"calls": 5}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match="'_extra_state' is a dict, not a tensor"):
        bayesrnn.Posterior(Counting(2, 2), PRIOR).save(tmp_path / "p")
