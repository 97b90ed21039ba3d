"""torch.compile of the user's model: the same gradients, and new samples without recompiling."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import bayesrnn

PRIOR = bayesrnn.Normal(1.0)


@pytest.mark.parametrize("wrap_first", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_and_eager_agree(wrap_first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    eager = bayesrnn.Posterior(copy.deepcopy(model), PRIOR)
    if wrap_first:
        posterior = bayesrnn.Posterior(model, PRIOR)
        compiled = torch.compile(model, backend="aot_eager")
    else:
        compiled = torch.compile(model, backend="aot_eager")
        posterior = bayesrnn.Posterior(compiled, PRIOR)
    x = torch.randn(6, 3)
    for step in range(3):
        for each, call in [(posterior, compiled), (eager, eager.model)]:
            each.mu.grad = each.rho.grad = None
            generator = torch.Generator().manual_seed(step)
            each.backward(lambda f=call: f(x).square().sum(), kl_weight=0.1, generator=generator)
        torch.testing.assert_close(posterior.mu.grad, eager.mu.grad)
        torch.testing.assert_close(posterior.rho.grad, eager.rho.grad)
    with torch.compiler.set_stance("fail_on_recompile"):
        posterior.backward(lambda: compiled(x).square().sum(), kl_weight=0.1)
