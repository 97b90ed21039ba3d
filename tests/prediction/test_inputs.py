"""Keywords, dicts, DataLoaders and models of Hugging Face: against one call with everything at once."""

from __future__ import annotations

import warnings
from collections import UserDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesrnn
from bayesrnn.prediction.inputs import Call

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10)


class Masked(nn.Module):
    """Named inputs, as the models of Hugging Face have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x, mask=None):
        return self.linear(x if mask is None else x * mask)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        mean, log_variance = self.linear(x).unbind(-1)
        return mean, log_variance.exp()


class Tagger(nn.Module):
    """Time first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(3, 5), nn.Linear(5, 4)

    def forward(self, x, state=None):
        output, state = self.gru(x, state)
        return self.out(output), state


class Rows(Dataset):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def _posterior(model: nn.Module) -> bayesrnn.Posterior:
    return bayesrnn.Posterior(model, bayesrnn.Normal(1.0), sigma_init=0.5)


def _same(found: bayesrnn.Categorical, expected: bayesrnn.Categorical) -> None:
    for name in ("log_probs", "entropy", "expected_entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_inputs_by_keyword_and_in_a_dict():
    posterior, mask = _posterior(Masked()), (X > 0).float()
    expected = bayesrnn.predict(posterior, X, mask, samples=4)
    assert not torch.allclose(expected.probs, bayesrnn.predict(posterior, X, samples=4).probs)
    _same(bayesrnn.predict(posterior, x=X, mask=mask, samples=4), expected)
    _same(bayesrnn.predict(posterior, X, mask=mask, samples=4), expected)
    _same(bayesrnn.predict(posterior, {"x": X, "mask": mask}, samples=4), expected)
    _same(bayesrnn.predict(posterior, UserDict(x=X), mask=mask, samples=4), expected)
    values = bayesrnn.predict_values(posterior, {"x": X}, mask=mask, samples=4)
    torch.testing.assert_close(
        values.mean, bayesrnn.predict_values(posterior, X, mask, samples=4).mean
    )


def _loaders() -> dict[str, tuple[DataLoader, Any]]:
    pairs = [*zip(X, Y, strict=True)]
    return {
        "tensors": (DataLoader(Rows(*X), batch_size=4), None),
        "tuples of one": (DataLoader(TensorDataset(X), batch_size=4), None),
        "dicts": (DataLoader(Rows(*({"x": x} for x in X)), batch_size=3), None),
        "pairs": (DataLoader(Rows(*pairs), batch_size=4), lambda batch: batch[0]),
        "pairs to dicts": (DataLoader(Rows(*pairs), batch_size=9), lambda batch: {"x": batch[0]}),
        "pairs to arguments": (
            DataLoader(Rows(*pairs), batch_size=9),
            lambda batch: (batch[0], torch.ones(3)),
        ),
    }


@pytest.mark.parametrize("kind", _loaders())
def test_the_batches_of_a_loader_are_joined(kind):
    posterior = _posterior(Masked())
    loader, inputs = _loaders()[kind]
    found = bayesrnn.predict(posterior, loader, inputs=inputs, samples=3, keep_samples=True)
    expected = bayesrnn.predict(posterior, X, samples=3, keep_samples=True)
    _same(found, expected)
    assert found.sample_log_probs is not None
    torch.testing.assert_close(found.sample_log_probs, expected.sample_log_probs)
    assert (found.samples, found.states) == (3, ())


def test_values_of_a_loader():
    posterior = _posterior(Noisy())
    found = bayesrnn.predict_values(posterior, DataLoader(TensorDataset(X), batch_size=4))
    expected = bayesrnn.predict_values(posterior, X)
    torch.testing.assert_close(found.means, expected.means)
    torch.testing.assert_close(found.variances, expected.variances)


def test_batches_along_another_axis():
    posterior, x = _posterior(Tagger()), torch.randn(6, 5, 3)
    loader = DataLoader(
        Rows(*x.unbind(1)), batch_size=2, collate_fn=lambda rows: torch.stack(rows, 1)
    )
    expected = bayesrnn.predict(posterior, x, samples=2, keep_samples=True)
    first = lambda out: out[0][..., 0]  # noqa: E731
    values = bayesrnn.predict_values(posterior, x, samples=2, read=first)
    for axis in (1, -2):
        found = bayesrnn.predict(posterior, loader, samples=2, keep_samples=True, batch_axis=axis)
        _same(found, expected)
        assert found.sample_log_probs is not None
        torch.testing.assert_close(found.sample_log_probs, expected.sample_log_probs)
    for axis in (1, -1):
        joined = bayesrnn.predict_values(posterior, loader, samples=2, read=first, batch_axis=axis)
        torch.testing.assert_close(joined.means, values.means)


def test_a_loader_leaves_the_global_random_state():
    posterior, loader = _posterior(Masked()), DataLoader(TensorDataset(X), batch_size=4)
    before = torch.get_rng_state()
    bayesrnn.predict(posterior, loader, samples=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_that_shuffles_is_pointed_out():
    loader = DataLoader(TensorDataset(X), batch_size=4, shuffle=True)
    with pytest.warns(UserWarning, match="shuffle=False") as caught:
        bayesrnn.predict(_posterior(Masked()), loader, samples=1)
    assert caught[0].filename == __file__


def test_batches_go_to_the_models_device(monkeypatch):
    call = Call((X, "text"), {"mask": X, "flag": True}).to(torch.device("meta"))
    assert call.arguments[0].device.type == call.keywords["mask"].device.type == "meta"
    assert (call.arguments[1], call.keywords["flag"]) == ("text", True)
    devices = []
    monkeypatch.setattr(Call, "to", lambda self, device: devices.append(device) or self)
    posterior = _posterior(Masked())
    bayesrnn.predict(posterior, DataLoader(TensorDataset(X), batch_size=5), samples=1)
    assert devices == [posterior.rho.device] * 2


def test_bad_loaders():
    posterior, pairs = _posterior(Masked()), DataLoader(TensorDataset(X, Y), batch_size=4)
    with pytest.raises(ValueError, match=r"a list of 2; .* inputs=lambda batch: batch\[0\]"):
        bayesrnn.predict(posterior, pairs)
    with pytest.raises(ValueError, match="states= with a DataLoader"):
        bayesrnn.predict_values(posterior, pairs, states=[None] * 10)
    with pytest.raises(ValueError, match="the only one"):
        bayesrnn.predict(posterior, pairs, X)
    with pytest.raises(ValueError, match="inputs=a Tensor; use a function"):
        bayesrnn.predict(posterior, pairs, inputs=X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no batches"):
        bayesrnn.predict(posterior, DataLoader(Rows(), batch_size=2))
    ragged = DataLoader(Rows(X[:4], X[:3]), batch_size=1)
    with pytest.raises(ValueError, match=r"\(1, 3, 4\), \(1, 4, 4\).*pad all batches"):
        bayesrnn.predict(posterior, ragged)
    single = DataLoader(TensorDataset(X), batch_size=4)
    for axis in (1, -1, 2, -3):
        with pytest.raises(ValueError, match=f"batch_axis={axis} is no batch axis"):
            bayesrnn.predict(posterior, single, batch_axis=axis)
    with pytest.raises(ValueError, match="batch_axis=2 is no axis of values with 2"):
        bayesrnn.predict_values(posterior, single, batch_axis=2)


def test_bad_calls_without_a_loader():
    posterior = _posterior(Masked())
    with pytest.raises(ValueError, match="inputs=a function is for the batches"):
        bayesrnn.predict(posterior, X, inputs=lambda batch: batch)
    with pytest.raises(ValueError, match='inputs=a Tensor .* {"inputs": ...}'):
        bayesrnn.predict(posterior, inputs=X)  # type: ignore[arg-type]
    for call in (
        lambda **k: bayesrnn.predict(posterior, {"x": X}, **k),
        lambda **k: bayesrnn.predict(posterior, x=X, **k),
    ):
        with pytest.raises(ValueError, match="states= needs inputs by position"):
            call(samples=1, states=[None])


def test_the_progress_bar_is_on_standard_error(capsys, monkeypatch):
    posterior, loader = _posterior(Masked()), DataLoader(TensorDataset(X), batch_size=4)
    monkeypatch.setenv("TERM", "xterm")

    def shown(*data: Any, **options: Any) -> bool:
        bayesrnn.predict(posterior, *data, samples=2, **options)
        captured = capsys.readouterr()
        assert captured.out == ""
        return "predicting" in captured.err

    assert not shown(loader)  # standard error is no terminal here
    assert shown(loader, progress=True)
    assert shown(X, progress=True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert shown(loader)
    assert not shown(loader, progress=False)
    assert not shown(X)


def test_logits_by_name():
    posterior = _posterior(Masked())
    expected = bayesrnn.predict(posterior, X, samples=2)
    named = lambda logits: SimpleNamespace(logits=logits, loss=None)  # noqa: E731
    _same(bayesrnn.predict(posterior, X, samples=2, read=named), expected)


def test_a_named_tuple_keeps_its_state():
    class Output(NamedTuple):
        logits: torch.Tensor
        state: torch.Tensor

    posterior, x = _posterior(Tagger()), torch.randn(6, 2, 3)
    found = bayesrnn.predict(posterior, x, samples=2, read=lambda out: Output(*out))
    assert len(found.states) == 2
    assert found.states[0].shape == (1, 2, 5)


def test_a_hugging_face_model_needs_no_read():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' imports warn
        from transformers import BatchEncoding, BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    posterior = _posterior(BertForSequenceClassification(config))
    ids, mask = torch.randint(20, (6, 5)), torch.ones(6, 5, dtype=torch.long)
    mask[:, 3:] = 0
    found = bayesrnn.predict(posterior, input_ids=ids, attention_mask=mask, samples=3)
    with posterior.mean(), torch.no_grad():
        logits = posterior.model.eval()(input_ids=ids, attention_mask=mask).logits
    at_mean = bayesrnn.predict(posterior, {"input_ids": ids, "attention_mask": mask}, samples=0)
    torch.testing.assert_close(at_mean.probs, logits.softmax(-1))
    batch = BatchEncoding({"input_ids": ids, "attention_mask": mask})
    _same(bayesrnn.predict(posterior, batch, samples=3), found)
    rows = [{"input_ids": i, "attention_mask": m} for i, m in zip(ids, mask, strict=True)]
    _same(bayesrnn.predict(posterior, DataLoader(Rows(*rows), batch_size=4), samples=3), found)
    values = bayesrnn.predict_values(posterior, batch, samples=0)
    torch.testing.assert_close(values.mean, logits)
