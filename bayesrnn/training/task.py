"""What a run learns: its minibatches, and how good it is. The training loop knows nothing else of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Generator, Tensor
from torch.nn import functional as F

from bayesrnn.config import Config, MnistConfig
from bayesrnn.data.corpus import Corpus
from bayesrnn.data.cuts import Cuts
from bayesrnn.data.digits import CLASSES, Digits
from bayesrnn.data.minibatches import Minibatches
from bayesrnn.evaluation.classification import classify
from bayesrnn.evaluation.perplexity import perplexity
from bayesrnn.methods import Learner

VALIDATION_STREAMS = 10


@dataclass(frozen=True)
class Minibatch:
    """What one minibatch came to."""

    loss: float
    """Nats, at the scale of the gradients."""
    units: float
    """loss / units is nats per item."""
    items: int
    """Words or examples in it."""
    kl_weight: float


class Task(Protocol):
    """Text to be predicted, or examples to be classified."""

    item: str
    """What nats are counted by: "word" or "example"."""
    items: int
    """Of one epoch."""
    size: int
    """Of the training data; a run can be resumed only with data of the same size."""
    hopeless: float
    """Nats per item that no training comes back from."""
    goal: str
    """The validation metric that decides which epoch was best: the lower the better."""

    def __len__(self) -> int:
        """Minibatches of an epoch."""
        ...

    def begin_epoch(self, epoch: int) -> None: ...

    def backward(self, learner: Learner, index: int, generator: Generator) -> Minibatch:
        """Add the gradients of the minibatch number `index` of this epoch to `.grad`."""
        ...

    def carried(self) -> dict[str, Tensor]:
        """What goes on from minibatch to minibatch."""
        ...

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what was carried at a checkpoint."""
        ...

    def training_metrics(self, nats: float) -> dict[str, Any]:
        """What nats per item mean to a reader."""
        ...

    def validate(self, learner: Learner) -> tuple[float, dict[str, float]]:
        """How good the learner is now: nats per item, and what is of interest, `goal` among it."""
        ...


class LanguageTask:
    """The next word of a text, in truncated minibatches with the state carried."""

    item = "word"
    goal = "valid_perplexity"

    def __init__(self, config: Config, corpus: Corpus) -> None:
        self.cuts = Cuts(corpus.train, num_streams=config.batch_size, unroll=config.unroll)
        self.valid = corpus.valid
        self.size = len(corpus.train)
        self.items = self.cuts.stream_length * config.batch_size
        self.hopeless = 2 * math.log(len(corpus.vocabulary))

    def __len__(self) -> int:
        return len(self.cuts)

    def begin_epoch(self, epoch: int) -> None:
        self.cuts.state = None

    def backward(self, learner: Learner, index: int, generator: Generator) -> Minibatch:
        cuts, model = self.cuts, learner.model
        x, y = (tokens.long() for tokens in cuts[index])
        loss, cuts.state = learner.backward(
            lambda: model.loss(x, y, cuts.state),  # type: ignore[operator]
            kl_weight=cuts.kl_weight,
            generator=generator,
        )
        return Minibatch(loss.item(), len(x), x.numel(), cuts.kl_weight)

    def carried(self) -> dict[str, Tensor]:
        if self.cuts.state is None:
            return {}
        return dict(zip(("h", "c"), self.cuts.state, strict=True))

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        self.cuts.state = (tensors["h"], tensors["c"]) if tensors else None

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_perplexity": math.exp(min(nats, 700))}

    def validate(self, learner: Learner) -> tuple[float, dict[str, float]]:
        measured = perplexity(learner, self.valid, streams=VALIDATION_STREAMS)
        return measured.nats / measured.words, {"valid_perplexity": measured.value}


class DigitsTask:
    """The class of a picture, in shuffled minibatches."""

    item = "example"
    goal = "valid_error"

    def __init__(self, config: MnistConfig, digits: Digits) -> None:
        self.minibatches = Minibatches(
            digits.train.x,
            digits.train.y,
            batch_size=config.batch_size,
            weighting=config.kl_weighting,  # pyright: ignore[reportArgumentType]
            seed=config.seed,
        )
        self.valid = digits.valid
        self.size = self.items = len(digits.train)
        self.hopeless = 10 * math.log(CLASSES)

    def __len__(self) -> int:
        return len(self.minibatches)

    def begin_epoch(self, epoch: int) -> None:
        self.minibatches.begin(epoch)

    def backward(self, learner: Learner, index: int, generator: Generator) -> Minibatch:
        minibatches, model = self.minibatches, learner.model
        x, y = minibatches[index]

        def closure() -> Tensor:
            return F.cross_entropy(model(x), y, reduction="sum") * minibatches.loss_scale

        weight = minibatches.kl_weight
        loss = learner.backward(closure, kl_weight=weight, generator=generator)
        return Minibatch(loss.item(), len(x) / minibatches.batch_size, len(x), weight)

    def carried(self) -> dict[str, Tensor]:
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        pass

    def training_metrics(self, nats: float) -> dict[str, Any]:
        return {"train_nats": nats}

    def validate(self, learner: Learner) -> tuple[float, dict[str, float]]:
        found = classify(learner.model, learner.resting(), self.valid.x, self.valid.y)
        return found.nats, {"valid_error": found.error, "valid_nats": found.nats}
