"""The language-model task: next-word prediction in chunks of truncated backpropagation, and its model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrnn import devices, init, methods
from bayesrnn.data.cuts import Cuts, detach
from bayesrnn.data.mapped import was_read
from bayesrnn.kernels import precision
from bayesrnn.methods import Method
from bayesrnn.tasks.language.config import LanguageModelConfig
from bayesrnn.tasks.language.data.corpus import Corpus
from bayesrnn.tasks.language.evaluation.perplexity import perplexity
from bayesrnn.tasks.language.models.variational_dropout import VariationalDropoutLM
from bayesrnn.tasks.language.models.word_lm import State, WordLM
from bayesrnn.training.experiment import Goal, Minibatch, Part

VALIDATION_STREAMS = 10


def build_method(config: LanguageModelConfig, vocabulary: int) -> Method:
    """The language model and method for a configuration, initialised from its seed, on our device."""
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
    method = spec.build(
        model, config, select=lambda name, _: name != "out.bias", generator=generator
    )
    method.model.to(devices.current())
    return method


def common_name(name: str) -> str:
    """A weight's name in `WordLM`; the model with variational dropout has an LSTM for each layer."""
    layer = re.fullmatch(r"lstms\.(\d+)\.(\w+)_l0", name)
    return f"lstm.{layer[2]}_l{layer[1]}" if layer else name


def rates_of_words(tokens: Tensor, vocabulary: int, *, power: float) -> dict[str, Tensor]:
    """(count of the commonest word / count of a word) ** power, for its rows in embedding and softmax.

    A rare word is seldom read or predicted; with one rate for all, its rows learn slowly. A power of 1/2 is
    the rule of frequency-aware SGD (Li et al., 2022). A word that never occurs has the rate of one that
    occurs once.
    """
    if power == 0:
        return {}
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for part in tokens.split(2**20):  # so that a long text need not fit into memory
        counts += torch.bincount(part, minlength=vocabulary)
        was_read(tokens, len(part))
    rates = (counts.max() / counts.clamp_min(1)).pow(power)[:, None]  # (V, 1)
    return {"embedding.weight": rates, "out.weight": rates}


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
        self.precision = config.precision
        self.valid = corpus.valid
        self.size = len(corpus.train)
        self.rows = config.batch_size
        self.items = self.cuts.stream_length * config.batch_size
        self.hopeless = 2 * math.log(len(corpus.vocabulary))
        self._rates = rates_of_words(corpus.train, len(corpus.vocabulary), power=config.rare_words)
        self._states: dict[Part, State] = {}
        self._restored: State | None = None

    def __len__(self) -> int:
        return len(self.cuts)

    def begin_epoch(self, epoch: int) -> None:
        self._states, self._restored = {}, None

    def step(
        self, method: Method, index: int, part: Part, generator: Generator | None
    ) -> Minibatch:
        cuts, model = self.cuts, method.model
        device, streams = devices.device_of(model), part.rows(self.rows)
        x, y = (tokens[:, streams].to(device, non_blocking=True).long() for tokens in cuts[index])
        share = x.shape[1] / self.rows
        state = self._state(part, device)
        kl_weight = cuts.kl_weight("sum over time")

        def closure() -> tuple[Tensor, State]:
            with precision.multiplying_in(self.precision, device):
                loss, after = model.loss(x, y, state)  # type: ignore[operator]
            return loss * share, after

        result = method.step(closure, kl_weight=kl_weight * part.kl_share, generator=generator)
        loss, after = result.value
        self._states[part] = detach(after)
        return Minibatch(loss, len(x) * share, x.numel(), kl_weight, result.metrics)

    def rates(self) -> dict[str, Tensor]:
        return self._rates

    def _state(self, part: Part, device: torch.device) -> State | None:
        """The recurrent state of the streams of a part."""
        if part in self._states or self._restored is None:
            return self._states.get(part)
        h, c = (
            tensor[:, part.rows(self.rows)].to(device).contiguous() for tensor in self._restored
        )
        return h, c

    def carried(self) -> dict[str, Tensor]:
        if not self._states:
            whole = self._restored
            return {} if whole is None else dict(zip(("h", "c"), whole, strict=True))
        parts = [self._states[part] for part in sorted(self._states, key=lambda part: part.number)]
        joined = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
        return dict(zip(("h", "c"), joined, strict=True))

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        self._states, self._restored = {}, (tensors["h"], tensors["c"]) if tensors else None

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_perplexity": math.exp(min(nats, 700))}

    def validate(self, method: Method) -> tuple[float, dict[str, float]]:
        measured = perplexity(method, self.valid, streams=VALIDATION_STREAMS)
        return measured.nats / measured.words, {"valid_perplexity": measured.value}
