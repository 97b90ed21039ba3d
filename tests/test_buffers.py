"""Memory is used again, but never while anyone else has it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrnn
from bayesrnn.buffers import Buffers

X = torch.randn(4, 3)


@pytest.mark.parametrize(
    "keep",
    [
        lambda vector: vector,
        lambda vector: vector[1:3],
        lambda vector: vector.detach(),
        lambda vector: vector.view(5, 1).T,
        lambda vector: vector.numpy(),
        lambda vector: vector.untyped_storage(),
    ],
    ids=["itself", "slice", "detached", "view", "numpy", "storage"],
)
def test_a_vector_is_not_used_again_while_it_or_a_view_of_it_lives(keep):
    buffers = Buffers(torch.zeros(5))
    vector = buffers.take()
    address = vector.data_ptr()
    kept = keep(vector)
    del vector
    assert buffers.take().data_ptr() != address
    del kept
    assert buffers.take().data_ptr() == address


def test_a_vector_is_not_used_again_while_it_is_a_gradient():
    buffers = Buffers(torch.zeros(5))
    parameter = nn.Parameter(torch.zeros(5))
    parameter.grad = buffers.take()
    address = parameter.grad.data_ptr()
    assert buffers.take().data_ptr() != address
    parameter.grad = None
    assert buffers.take().data_ptr() == address


def test_what_is_held_at_once_is_never_the_same():
    buffers = Buffers(torch.zeros(5))
    vectors = [buffers.take() for _ in range(30)]
    assert len({vector.data_ptr() for vector in vectors}) == 30


@pytest.mark.parametrize("sharpened", [False, True])
def test_a_training_loop_asks_for_no_new_memory_after_its_first_steps(sharpened):
    model = nn.Linear(3, 2)
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(1.0))
    learner = bayesrnn.Sharpened(posterior, loss_scale=1.0) if sharpened else posterior
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
    addresses = []
    asked = []
    take = posterior.buffers.take

    def counting():
        vector = take()
        asked.append(vector.data_ptr())
        return vector

    posterior.buffers.take = counting
    for _ in range(6):
        optimizer.zero_grad()
        learner.backward(lambda: model(X).square().sum(), kl_weight=0.1)
        optimizer.step()
        addresses.append(set(asked))
    assert addresses[-1] == addresses[2]
    # The sample and sigma, which become gradients; sharpened, also theta, and g_phi, which becomes kappa's.
    assert len(addresses[-1]) == (4 if sharpened else 2)


def test_gradients_and_draws_that_are_kept_stay_as_they_are():
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    kept = []
    for _ in range(5):
        posterior.mu.grad = posterior.rho.grad = None
        with posterior.sample() as draw:
            posterior.model(X).square().sum().backward()
        posterior.accumulate_grad(draw, kl_weight=0.1)
        grads = (posterior.mu.grad, posterior.rho.grad[:2])
        kept.append((grads, tuple(grad.clone() for grad in grads)))
    for grads, copies in kept:
        assert all(torch.equal(grad, copy) for grad, copy in zip(grads, copies, strict=True))


def test_a_spent_draw_says_so():
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    with posterior.sample() as draw:
        posterior.model(X).square().sum().backward()
    assert torch.isfinite(posterior.kl(draw))
    posterior.accumulate_grad(draw, kl_weight=0.1)
    with pytest.raises(ValueError, match="this draw is spent"):
        posterior.kl(draw)


def test_a_draw_without_a_gradient_stays_valid_and_so_does_a_state_taken_inside():
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    mean = posterior.mu.detach().clone()
    with posterior.sample() as first:
        state = posterior.state_dict()
    kl = posterior.kl(first)
    for _ in range(3):
        with posterior.sample():
            pass
    assert torch.equal(posterior.kl(first), kl)
    assert torch.equal(torch.cat([state["mu.weight"].flatten(), state["mu.bias"]]), mean)
