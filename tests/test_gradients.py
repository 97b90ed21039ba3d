"""What every method shares."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayesrnn.gradients import total_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_length_of_all_gradients_together(dtype):
    parameters = [
        nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in [(3, 2), (4,), (), (1,)]
    ]
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn_like(parameter)
    right = nn.utils.get_total_norm([p.grad for p in parameters[:-1]])
    torch.testing.assert_close(total_norm(parameters), right)


def test_it_stays_accurate_over_many_numbers():
    parameter = nn.Parameter(torch.empty(3_000_000))
    parameter.grad = torch.randn(3_000_000)
    exact = parameter.grad.double().norm()
    assert abs(total_norm([parameter]).double() / exact - 1) < 1e-4
