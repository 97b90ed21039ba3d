"""The language-model task: next-word prediction in chunks of truncated backpropagation, and its model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn import init, methods
from bayesrnn.data.cuts import Cuts
from bayesrnn.methods import Method
from bayesrnn.tasks.language.config import LanguageModelConfig
from bayesrnn.tasks.language.data.corpus import Corpus
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.models.variational_dropout import VariationalDropoutLM
from bayesrnn.tasks.language.models.word_lm import WordLM
from bayesrnn.training.experiment import Goal, Minibatch

VALIDATION_STREAMS = 10


def build_method(config: LanguageModelConfig, vocabulary: int) -> Method:
    """The language model and method for a configuration, initialised from its seed."""
    generator = torch.Generator().manual_seed(config.seed)
    spec = methods.method(config.method)
    model = (VariationalDropoutLM if spec.dropout == "variational" else WordLM)(
        vocabulary,
        config.hidden,
        config.layers,
        dropout=0.0 if spec.dropout == "none" else config.dropout,
        tied=config.tied,
    )
    if config.init == "fan-in":
        init.fan_in_(model, generator=generator)
    else:
        init.uniform_(model, config.init_scale, generator=generator)
    # The softmax's bias is an ordinary parameter, as in the authors' script.
    return spec.build(model, config, select=lambda name, _: name != "out.bias", generator=generator)


def common_name(name: str) -> str:
    """A weight's name in `WordLM`; the model with variational dropout has an LSTM for each layer."""
    layer = re.fullmatch(r"lstms\.(\d+)\.(\w+)_l0", name)
    return f"lstm.{layer[2]}_l{layer[1]}" if layer else name


class LanguageTask:
    """Next-word prediction, with the recurrent state carried from chunk to chunk."""

    item = "word"
    goal = Goal("valid_perplexity")

    def __init__(self, config: LanguageModelConfig, corpus: Corpus) -> None:
        shortest = (
            len(corpus.train) - 1
        ) // config.batch_size  # of a stream, which may be one chunk
        unroll = min(config.unroll, shortest)
        self.cuts = Cuts(corpus.train, num_streams=config.batch_size, unroll=unroll)
        self.valid = corpus.valid
        self.size = len(corpus.train)
        self.items = self.cuts.stream_length * config.batch_size
        self.hopeless = 2 * math.log(len(corpus.vocabulary))

    def __len__(self) -> int:
        return len(self.cuts)

    def begin_epoch(self, epoch: int) -> None:
        self.cuts.state = None

    def step(self, method: Method, index: int, generator: Generator) -> Minibatch:
        cuts, model = self.cuts, method.model
        x, y = (tokens.long() for tokens in cuts[index])
        kl_weight = cuts.kl_weight("sum over time")
        result = method.step(
            lambda: model.loss(x, y, cuts.state),  # type: ignore[operator]
            kl_weight=kl_weight,
            generator=generator,
        )
        loss, cuts.state = result.value
        return Minibatch(loss.item(), len(x), x.numel(), kl_weight, result.metrics)

    def carried(self) -> dict[str, Tensor]:
        if self.cuts.state is None:
            return {}
        return dict(zip(("h", "c"), self.cuts.state, strict=True))

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        self.cuts.state = (tensors["h"], tensors["c"]) if tensors else None

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_perplexity": math.exp(min(nats, 700))}

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        measured = perplexity(method, self.valid, streams=VALIDATION_STREAMS)
        return measured.nats / measured.words, {"valid_perplexity": measured.value}
