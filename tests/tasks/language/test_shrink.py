"""Dead units are removed without changing the predictions."""

from __future__ import annotations

import pytest
import torch

from bayesrnn.tasks.language.models.shrink import shrink
from bayesrnn.tasks.language.models.word_lm import WordLM


def _model(**options) -> WordLM:
    torch.manual_seed(0)
    return WordLM(15, 8, 2, **options).double()


def _logits(model: WordLM) -> torch.Tensor:
    x = torch.randint(15, (30, 3), generator=torch.Generator().manual_seed(1))
    first, state = model(x[:17])
    return torch.cat([first, model(x[17:], state)[0]])


def _gate(model: WordLM, layer: int, gate: int, unit: int) -> None:
    """Zero one row of one gate: the gate has no inputs."""
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(model.lstm, f"{name}_l{layer}")[gate * 8 + unit] = 0


@torch.no_grad()
def _kill_silent(model: WordLM, layer: int, unit: int) -> None:
    _gate(model, layer, 2, unit)


@torch.no_grad()
def _kill_unread(model: WordLM, layer: int, unit: int) -> None:
    getattr(model.lstm, f"weight_hh_l{layer}")[:, unit] = 0
    above = model.lstm.weight_ih_l1 if layer == 0 else model.out.weight
    above[:, unit] = 0


@pytest.mark.parametrize("kill", [_kill_silent, _kill_unread])
def test_units_that_are_zero_or_unread_are_removed(kill):
    model = _model()
    for layer, units in [(0, (1, 4, 5)), (1, (0, 7))]:
        for unit in units:
            kill(model, layer, unit)
    expected = _logits(model)
    small = shrink(model)
    assert small.hidden == (8, 6)  # the second layer lost two, and both keep as many
    assert small.model.lstm.hidden_size == 6
    torch.testing.assert_close(_logits(small.model.double()), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_dead_inputs_are_removed_and_kill_units_that_depend_on_them():
    model = _model()
    model.embedding.weight[:, 3] = 0  # nothing to read
    model.lstm.weight_ih_l0[:, 6] = 0  # no outgoing connections
    # Units 1 of both layers: the lower is read by the upper alone, which itself is not read.
    for unit in (1, 2):
        _kill_unread(model, 1, unit)
    model.lstm.weight_hh_l0[:, 1] = 0
    model.lstm.weight_hh_l0[:, 2] = 0
    for unit in (1, 2):
        column = model.lstm.weight_ih_l1[:, unit].view(4, 8)
        column[:, [u for u in range(8) if u not in (1, 2)]] = 0
    expected = _logits(model)
    small = shrink(model)
    assert small.embedding == (8, 6)
    assert small.hidden == (8, 6)
    torch.testing.assert_close(_logits(small.model.double()), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_bias_alone_keeps_a_unit_alive():
    model = _model()
    _kill_silent(model, 1, 2)
    model.lstm.bias_hh_l1[2 * 8 + 2] = 0.3
    assert shrink(model).hidden == (8, 8)


def test_a_model_without_dead_units_is_unchanged():
    model = _model()
    small = shrink(model)
    assert small.hidden == (8, 8)
    assert small.embedding == (8, 8)
    for (name, one), other in zip(
        model.state_dict().items(), small.model.double().state_dict().values(), strict=True
    ):
        assert torch.equal(one, other.to(one)), name


@torch.no_grad()
def test_a_tied_model_is_left_alone_and_a_dead_one_keeps_a_unit():
    tied = _model(tied=True)
    tied.embedding.weight[:, 3] = 0
    copy = shrink(tied).model
    assert copy is not tied
    assert copy.out.weight is copy.embedding.weight
    torch.testing.assert_close(_logits(copy), _logits(tied))
    dead = _model()
    for parameter in dead.lstm.parameters():
        parameter.zero_()
    small = shrink(dead)
    assert small.hidden == (8, 1)
    torch.testing.assert_close(_logits(small.model.double()), _logits(dead))
