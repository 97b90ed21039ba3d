"""A vector in pieces is the vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.variational import one_pass, passes, pieces
from bayesrnn.variational.pieces import Pieces

SIZES = (40, 1, 700, 3, 700)
SETTINGS = {
    "prior": bayesrnn.ScaleMixture(0.75, 0.4, 0.0025),
    "kl_weight": torch.tensor(0.3),
    "sigma_weight": torch.tensor(0.3),
}


def test_large_tensors_are_read_where_they_lie_and_small_neighbours_joined(monkeypatch):
    monkeypatch.setattr(pieces, "LARGE", 100)
    tensors = [
        torch.randn(2, 3),
        torch.randn(4),
        torch.randn(10, 10),
        torch.randn(20, 30),
        torch.randn(5),
    ]
    found = Pieces.of(tensors)
    assert [part.numel() for part in found.parts] == [10, 100, 600, 5]
    assert found.parts[1].data_ptr() == tensors[2].data_ptr()
    assert found.numel() == 715
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    assert torch.equal(found.joined(), whole)
    out = torch.empty(715)
    assert found.joined(out) is out
    assert torch.equal(out, whole)


@pytest.mark.parametrize("compiled", [False, True], ids=["written", "compiled"])
def test_a_pass_over_pieces_is_one_over_the_whole(compiled, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", compiled)
    torch.manual_seed(0)
    size = sum(SIZES)
    theta, mu, g = (torch.randn(size) for _ in range(3))
    sigma = torch.rand(size) + 0.01
    results = []
    # The second time other sizes, so that code made for the first is not made anew.
    with torch._dynamo.config.patch(error_on_recompile=True):
        for sizes in (SIZES, SIZES[::-1], (size,)):
            vectors = (theta.clone(), sigma.clone(), mu, Pieces(tuple(g.split(sizes))))
            passes.expected_gradients_(*vectors, **SETTINGS)
            results.append(torch.stack(vectors[:2]))
    assert one_pass.enabled == compiled
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-6)


class Uneven(nn.Module):
    """Gradients of every kind: large, small, sparse, transposed, missing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)
        self.unused = nn.Parameter(torch.randn(300))
        self.layer = nn.Linear(8, 40)
        self.turned = nn.Parameter(torch.randn(40, 8))

    def forward(self, x):
        return (self.layer(self.words(x)) @ self.turned).square().sum()


@pytest.mark.parametrize("prior", [bayesrnn.Normal(0.5), bayesrnn.EmpiricalNormal()], ids=str)
def test_a_step_is_the_same_however_the_gradients_are_read(prior, monkeypatch):
    by_large = []
    for large in (1, 100, 10**9):
        monkeypatch.setattr(pieces, "LARGE", large)
        by_large.append(_gradients(prior))
    for other in by_large[1:]:
        for right, found in zip(by_large[0], other, strict=True):
            assert right.abs().sum() > 0
            torch.testing.assert_close(found, right, rtol=1e-12, atol=0)


def _gradients(prior):
    torch.manual_seed(0)
    posterior = bayesrnn.Posterior(Uneven().double(), prior, sigma_init=0.1)
    sharpened = bayesrnn.Sharpened(posterior, loss_scale=1.0, sigma0=1e-3)
    for method in (posterior, sharpened):
        generator = torch.Generator().manual_seed(1)
        method.backward(
            lambda: posterior.model(torch.arange(20)), kl_weight=0.1, generator=generator
        )
    return [parameter.grad for parameter in sharpened.parameters()]
