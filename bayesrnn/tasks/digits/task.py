"""The digits task: image classification in shuffled minibatches, and the model for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesrnn import devices, init, methods
from bayesrnn.data.minibatches import Minibatches
from bayesrnn.kernels import precision
from bayesrnn.methods import Method
from bayesrnn.tasks.digits.config import DigitsConfig
from bayesrnn.tasks.digits.data import CLASSES, Digits
from bayesrnn.tasks.digits.evaluation import classify
from bayesrnn.tasks.digits.models import LeNet, Perceptron
from bayesrnn.training.experiment import Goal, Minibatch, Part


def build_method(config: DigitsConfig) -> Method:
    """The classifier and method for a configuration, initialised from its seed, on our device."""
    generator = torch.Generator().manual_seed(config.seed)
    spec = methods.method(config.method)
    dropout = 0.0 if spec.dropout == "none" else config.dropout
    size = config.pixels
    if config.network == "lenet":
        model = LeNet(size, CLASSES, config.hidden, dropout=dropout)
    else:
        model = Perceptron(size * size, CLASSES, config.hidden, config.layers, dropout=dropout)
    init.fan_in_(model, generator=generator)
    method = spec.build(model, config, generator=generator)
    method.model.to(devices.current())
    return method


class DigitsTask:
    """Classify images."""

    item = "example"
    goal = Goal("valid_error")

    def __init__(self, config: DigitsConfig, digits: Digits) -> None:
        device = devices.current()
        self.minibatches = Minibatches(
            digits.train.x.to(device),
            digits.train.y.to(device),
            batch_size=config.batch_size,
            weighting=config.kl_weighting,  # pyright: ignore[reportArgumentType]
            seed=config.seed,
        )
        self.valid = digits.valid
        self.precision = config.precision
        self.rows = config.batch_size
        self.size = self.items = len(digits.train)
        self.hopeless = 10 * math.log(CLASSES)

    def __len__(self) -> int:
        return len(self.minibatches)

    def begin_epoch(self, epoch: int) -> None:
        self.minibatches.begin(epoch)

    def step(
        self, method: Method, index: int, part: Part, generator: Generator | None
    ) -> Minibatch:
        minibatches, model = self.minibatches, method.model
        x, y = minibatches[index]
        rows = part.rows(len(x))
        x, y = x[rows], y[rows]
        kl_weight = minibatches.kl_weights[index]

        def closure() -> Tensor:
            with precision.multiplying_in(self.precision, x.device):
                return F.cross_entropy(model(x), y, reduction="sum") * minibatches.loss_scale

        result = method.step(closure, kl_weight=kl_weight * part.kl_share, generator=generator)
        units = len(x) / minibatches.batch_size
        return Minibatch(result.value, units, len(x), kl_weight, result.metrics)

    def rates(self) -> dict[str, Tensor]:
        return {}

    def carried(self) -> dict[str, Tensor]:
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        pass

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_nats": nats}

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        found = classify(method.model, method.resting(), self.valid.x, self.valid.y)
        return found.nats, {"valid_error": found.error, "valid_nats": found.nats}
