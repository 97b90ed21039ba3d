"""FlatWeights on its own: a module's weights as a vector, and another vector in their place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayesrnn.weights.flat import FlatWeights


class TwoLayers(nn.Module):
    """A tied weight, a padding row, and an LSTM, which keeps a list of its weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 4)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0])


X = torch.tensor([[1, 2], [3, 4], [0, 1]])


def _bound(select=None) -> FlatWeights:
    torch.manual_seed(0)
    weights = FlatWeights(TwoLayers(), select)
    weights.bind(mu=nn.Parameter(weights.start()))
    return weights


def test_the_vector_is_the_weights_in_the_models_order():
    torch.manual_seed(0)
    model = TwoLayers()
    plain = {name: p.detach().clone() for name, p in model.named_parameters()}
    weights = FlatWeights(model)
    assert [slot.name for slot in weights.layout] == list(plain)
    assert torch.equal(weights.start(), torch.cat([p.flatten() for p in plain.values()]))
    assert dict(model.named_parameters()).keys() == plain.keys()  # untouched until it is bound
    named = weights.named(weights.start())
    assert all(torch.equal(named[name], p) for name, p in plain.items())


def test_the_model_holds_the_vector_it_is_given_and_then_the_mean_again():
    weights = _bound()
    at_mean = weights.model(X)
    other = TwoLayers()
    vector = torch.cat([p.detach().flatten() for p in other.parameters()])
    leaves = weights.leaves(vector)
    with weights.holding(leaves):
        assert torch.equal(weights.model(X), other(X))
        assert weights.model.out.weight is weights.model.embedding.weight is leaves[0]
        assert not weights.at_rest
    assert torch.equal(weights.model(X), at_mean)
    assert weights.at_rest


def test_gradients_come_as_one_vector_as_autograd_has_them():
    weights = _bound()
    plain = TwoLayers()
    plain.load_state_dict({k: v for k, v in weights.model.state_dict().items() if k[0] != "p"})
    plain(X).square().sum().backward()
    leaves = weights.leaves(weights.parameter("mu"))
    assert weights.flatten([leaf.grad for leaf in leaves]) is None
    with weights.holding(leaves):
        weights.model(X).square().sum().backward()
    right = torch.cat([p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(weights.flatten([leaf.grad for leaf in leaves]), right)
    assert weights.parameter("mu").grad is None


def test_leaves_share_the_vectors_memory_or_that_of_a_cast_copy():
    weights = _bound()
    vector = weights.parameter("mu").detach().clone()
    leaves = weights.leaves(vector)
    vector.zero_()
    assert all((leaf == 0).all() for leaf in leaves)
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in leaves)
    weights.model.bfloat16()
    assert {leaf.dtype for leaf in weights.leaves(vector)} == {torch.bfloat16}
    assert weights.parameter("mu").dtype == torch.float32


def test_what_was_not_chosen_stays_a_parameter():
    weights = _bound("lstm.*")
    assert [tuple(p.shape) for p in weights.ordinary_parameters()] == [(5, 4), (5,)]
    assert set(weights.ordinary_state()) == {"embedding.weight", "out.weight", "out.bias"}
    names = [name for name, _ in weights.model.named_parameters()]
    assert names == ["posterior_mu", "embedding.weight", "out.bias"]


def test_a_tied_weight_stands_under_all_its_names_in_the_state():
    weights = _bound()
    state = weights.model.state_dict()
    assert torch.equal(state["out.weight"], state["embedding.weight"])
    state["embedding.weight"] += 1
    state["out.weight"] += 1
    weights.model.load_state_dict(state)
    assert torch.equal(weights.model.out.weight, state["out.weight"])


def test_release_ties_again_what_was_tied():
    weights = _bound()
    weights.release()
    assert weights.model.out.weight is weights.model.embedding.weight
    assert isinstance(weights.model.out.weight, nn.Parameter)
    weights.model(X).sum().backward()
    assert weights.model.lstm.weight_hh_l0.grad is not None


def test_a_fused_step_is_counted(recwarn):
    from bayesrnn.torch_private import versions

    weights = _bound()
    mu = weights.parameter("mu")
    mu.grad = torch.ones_like(mu)
    before = versions(mu)
    torch.optim.SGD([mu], lr=0.1, fused=True).step()
    assert versions(mu) > before
    assert not recwarn


def test_a_replaced_layer_is_noticed_and_named():
    weights = _bound()
    weights.model.out = nn.Linear(4, 5)
    with pytest.raises(ValueError, match=r"'out.weight' no longer belongs"):
        weights.check()


def test_a_mean_that_moves_inside_a_block_is_followed_after_it():
    weights = _bound()
    start = weights.parameter("mu").detach().clone()
    with weights.holding(weights.leaves(start)):
        weights.parameter("mu").data = start + 1
        weights.refresh()
    assert weights.at_rest
    assert torch.equal(weights.model.out.bias, weights.named(start + 1)["out.bias"])
