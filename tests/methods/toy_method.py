"""A method from outside the package: a point estimate whose gradients have noise added to them."""

from __future__ import annotations

import torch

from bayesrnn.methods.base import StepResult
from bayesrnn.methods.point_estimate import PointEstimate


def build(model, settings, *, select=None, generator):
    return NoisyGradients(model)


class NoisyGradients(PointEstimate):
    def step(self, closure, *, kl_weight, generator):
        result = super().step(closure, kl_weight=kl_weight, generator=generator)
        for parameter in self.parameters():
            noise = torch.empty_like(parameter).normal_(generator=generator)
            parameter.grad.add_(noise, alpha=1e-3)
        return StepResult(result.value, {"noise": 2.0})
