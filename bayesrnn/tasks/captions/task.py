"""The caption task: the words of captions, given the image, in shuffled minibatches; and the model for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn import devices, init, methods
from bayesrnn.data.minibatches import Minibatches
from bayesrnn.kernels import precision
from bayesrnn.methods import Method
from bayesrnn.tasks.captions.config import CaptionsConfig
from bayesrnn.tasks.captions.data.encoded import Encoded
from bayesrnn.tasks.captions.evaluation.words import word_beliefs
from bayesrnn.tasks.captions.model import Captioner, places_of
from bayesrnn.training.experiment import Goal, Minibatch, Part


def build_method(config: CaptionsConfig, vocabulary: int) -> Method:
    """The captioner and method for a configuration, initialised from its seed, on our device."""
    generator = torch.Generator().manual_seed(config.seed)
    spec = methods.method(config.method)
    dropout = 0.0 if spec.dropout == "none" else config.dropout
    model = Captioner(config.feature_size, vocabulary, config.embedding, config.hidden, dropout)
    if config.init == "fan-in":
        init.fan_in_(model, generator=generator)
    else:
        init.uniform_(model, config.init_scale, generator=generator)
    # The softmax's bias is an ordinary parameter, as in the authors' script for language models.
    method = spec.build(
        model, config, select=lambda name, _: name != "out.bias", generator=generator
    )
    method.model.to(devices.current())
    return method


class CaptionTask:
    """Predict each word of a caption from the image and the words before it."""

    item = "word"
    goal = Goal("valid_perplexity")

    def __init__(
        self, config: CaptionsConfig, train: Encoded, valid: Encoded, vocabulary: int
    ) -> None:
        self.train, self.valid = train, valid
        self.vocabulary = vocabulary
        self.minibatches = Minibatches(
            train.image,
            train.y,
            batch_size=config.batch_size,
            seed=config.seed,
            lengths=train.lengths,
        )
        self.precision = config.precision
        self.rows = config.batch_size
        self.size = self.items = train.words
        self.hopeless = 2 * math.log(vocabulary)

    def __len__(self) -> int:
        return len(self.minibatches)

    def begin_epoch(self, epoch: int) -> None:
        self.minibatches.begin(epoch)

    def step(
        self, method: Method, index: int, part: Part, generator: Generator | None
    ) -> Minibatch:
        minibatches, model = self.minibatches, method.model
        assert isinstance(model, Captioner)
        device = devices.device_of(model)
        image, y = minibatches[index]
        rows, share = part.rows(len(y)), 1.0
        if (
            rows.start == rows.stop
        ):  # fewer captions than parts: an LSTM needs one, which does not count
            rows, share = slice(0, 1), 0.0
        batch = self.train.batch(image[rows], y[rows])
        places = places_of(batch[-1])  # found here, so that a GPU need not be awaited
        words = len(places)
        features, x, y, places = (
            tensor.to(device, non_blocking=True) for tensor in (*batch, places)
        )
        scale = minibatches.loss_scale * share
        kl_weight = minibatches.kl_weight("mean")  # over captions

        def closure() -> Tensor:
            with precision.multiplying_in(self.precision, device):
                return model.nats(features, x, y, places) * scale

        result = method.step(closure, kl_weight=kl_weight * part.kl_share, generator=generator)
        items = words if share else 0
        return Minibatch(result.value, words * scale, items, kl_weight, result.metrics)

    def rates(self) -> dict[str, Tensor]:
        return {}

    def carried(self) -> dict[str, Tensor]:
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        pass

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_perplexity": math.exp(min(nats, 700))}

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        found = word_beliefs(method.model, method.resting(), self.valid, self.vocabulary)
        return found.nats / self.valid.words, {"valid_perplexity": found.perplexity}
