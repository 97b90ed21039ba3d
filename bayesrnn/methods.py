"""One learner for each method: how a minibatch becomes gradients, and which weights predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn import init
from bayesrnn.baselines.sgld import langevin_gradient, langevin_noise_
from bayesrnn.baselines.variational_dropout import VariationalDropoutLM
from bayesrnn.config import Config, MnistConfig, Settings
from bayesrnn.flat import FlatWeights, Select
from bayesrnn.gradients import add_grad, loss_of
from bayesrnn.models.classifier import LeNet, Perceptron
from bayesrnn.models.word_lm import WordLM
from bayesrnn.posterior import Posterior
from bayesrnn.prediction import sample_generators
from bayesrnn.sharpened import Sharpened
from bayesrnn.storage import copy_state
from bayesrnn.variational import priors

T = TypeVar("T")
Member = Callable[[], AbstractContextManager[Any]]
"""Puts one member of a Monte Carlo ensemble in the model for the length of a block, again and again."""


class Learner(Protocol):
    """What the training loop and the evaluations need of a method."""

    model: nn.Module

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimiser trains."""
        ...

    def rho(self) -> nn.Parameter | None:
        """The one that decides sigma, and has a learning rate of its own."""
        ...

    def backward(self, closure: Callable[[], T], *, kl_weight: float, generator: Generator) -> T:
        """Add one minibatch's gradients to `.grad`; returns what the closure returned."""
        ...

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator) -> None: ...

    def after_epoch(self) -> None: ...

    def kl(self) -> float | None:
        """KL of the posterior to its prior in nats, if the method has one."""
        ...

    def members(self, samples: int, seed: int) -> list[Member]:
        """A Monte Carlo ensemble; ValueError if there is nothing to sample."""
        ...

    def resting(self) -> list[Member]:
        """What predicts when nothing is sampled: the mean, the only weights, or SGLD's kept samples."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def header(self) -> dict[str, Any]: ...


def make_learner(config: Config, vocabulary: int) -> Learner:
    """The language model and method of a configuration, freshly initialised from its seed."""
    generator = torch.Generator().manual_seed(config.seed)
    gal = config.method == "variational-dropout"
    model = (VariationalDropoutLM if gal else WordLM)(
        vocabulary,
        config.hidden,
        config.layers,
        dropout=config.dropout if config.method.endswith("dropout") else 0.0,
        tied=config.tied,
    )
    if config.init == "fan-in":
        init.fan_in_(model, generator=generator)
    else:
        init.uniform_(model, config.init_scale, generator=generator)
    if config.method == "sgld":
        return LangevinLearner(model, config)
    # The softmax's bias is an ordinary parameter, as in the authors' script.
    return learner_of(model, config, select=lambda name, _: name != "out.bias", generator=generator)


def make_classifier(config: MnistConfig, size: int, classes: int) -> Learner:
    """The classifier of `size` x `size` pictures and the method of a configuration, freshly initialised."""
    generator = torch.Generator().manual_seed(config.seed)
    dropout = config.dropout if config.method == "dropout" else 0.0
    if config.network == "lenet":
        model = LeNet(size, classes, config.hidden, dropout=dropout)
    else:
        model = Perceptron(size * size, classes, config.hidden, config.layers, dropout=dropout)
    init.fan_in_(model, generator=generator)
    return learner_of(model, config, generator=generator)


def learner_of(
    model: nn.Module, config: Settings, *, select: Select = None, generator: Generator
) -> Learner:
    """A model with the method that its settings name; losses are averaged over the minibatch."""
    if config.method not in ("bbb", "sharpened"):
        return PlainLearner(model)
    posterior = Posterior(
        model,
        make_prior(config),
        select=select,
        sigma_init=config.sigma_init or init.from_prior(),
        kl_gradient=config.kl_gradient,  # pyright: ignore[reportArgumentType]
        sigma_temperature=config.sigma_temperature,
        generator=generator,
    )
    if config.method == "bbb":
        return PosteriorLearner(posterior)
    sharpened = Sharpened(
        posterior,
        loss_scale=1 / config.batch_size,
        sigma0=config.sigma0,
        kappa_init=config.kappa_init,
        exact=config.exact,
    )
    return SharpenedLearner(sharpened)


def make_prior(config: Settings):
    sigma1, sigma2 = math.exp(config.log_sigma1), math.exp(config.log_sigma2)
    if config.prior == "normal":
        return priors.Normal(sigma1)
    if config.prior == "empirical":
        return priors.EmpiricalNormal()
    mixture = priors.RowScaleMixture if config.prior == "row-mixture" else priors.ScaleMixture
    return mixture(config.pi, sigma1, sigma2)


class PlainLearner:
    """Maximum likelihood, with whatever dropout the model has; its masks are the ensemble."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def rho(self) -> nn.Parameter | None:
        return None

    def backward(self, closure: Callable[[], T], *, kl_weight: float, generator: Generator) -> T:
        value = closure()
        loss_of(value).backward()
        return value

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator) -> None:
        pass

    def after_epoch(self) -> None:
        pass

    def kl(self) -> float | None:
        return None

    def members(self, samples: int, seed: int) -> list[Member]:
        if not any(_dropout_of(module) for module in self.model.modules()):
            raise ValueError(
                "this run has one set of weights and no dropout: there is nothing to sample."
            )
        generators = sample_generators(samples, seed, torch.device("cpu"))
        return [_dropout_member(self.model, g.initial_seed()) for g in generators]

    def resting(self) -> list[Member]:
        return [nullcontext]

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        copy_state(self.state_dict(), state)

    def header(self) -> dict[str, Any]:
        return {"format": "bayesrnn-weights-1"}


class LangevinLearner(PlainLearner):
    """SGLD: the chain's latest weights train; an average over those of the last epochs predicts."""

    def __init__(self, model: nn.Module, config: Config) -> None:
        super().__init__(model)
        self.prior_sigma = config.sgld_prior_sigma
        self.keep = config.sgld_samples
        self.weights = FlatWeights(model)
        self.theta = self.weights.whole
        self.weights.bind()
        self.samples: list[Tensor] = []

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.theta

    def backward(self, closure: Callable[[], T], *, kl_weight: float, generator: Generator) -> T:
        value = super().backward(closure, kl_weight=kl_weight, generator=generator)
        g = self.weights.take_grad()
        assert g is not None
        theta = self.theta.detach()
        add_grad(self.theta, langevin_gradient(g.joined(), theta, self.prior_sigma, kl_weight))
        return value

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator) -> None:
        langevin_noise_(self.theta, lr, kl_weight, generator)

    def after_epoch(self) -> None:
        self.samples.append(self.theta.detach().clone())
        del self.samples[: -self.keep]

    def members(self, samples: int, seed: int) -> list[Member]:
        if len(self.samples) < samples:
            raise ValueError(
                f"this run kept {len(self.samples)} weight samples; ask for no more, or train with a larger "
                "--sgld-samples."
            )
        # Dynamic evaluation moves theta; the samples move along with it.
        then = self.weights.flat.clone()
        latest_first = self.samples[: -samples - 1 : -1]  # so that few are the first of many
        return [
            lambda s=s: self.weights.showing(s + (self.weights.flat - then)) for s in latest_first
        ]

    def resting(self) -> list[Member]:
        return self.members(len(self.samples), 0) if self.samples else super().resting()

    def state_dict(self) -> dict[str, Tensor]:
        samples = {f"sample.{index:03d}": sample for index, sample in enumerate(self.samples)}
        return {"theta": self.theta.detach(), **samples}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.samples = [state[name].clone() for name in sorted(state) if name != "theta"]
        copy_state(self.state_dict(), state)


class PosteriorLearner:
    """Bayes by Backprop."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior
        self.model = posterior.model

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.posterior.parameters()

    def rho(self) -> nn.Parameter | None:
        return self.posterior.rho

    def backward(self, closure: Callable[[], T], *, kl_weight: float, generator: Generator) -> T:
        return self.posterior.backward(closure, kl_weight=kl_weight, generator=generator)

    def after_step(self, *, lr: float, kl_weight: float, generator: Generator) -> None:
        pass

    def after_epoch(self) -> None:
        pass

    def kl(self) -> float | None:
        """One sample's estimate, from a generator of its own: exact, it would cost a hundred passes."""
        generator = torch.Generator(self.posterior.rho.device).manual_seed(0)
        return self.posterior.kl(self.posterior.draw(generator=generator)).item()

    def members(self, samples: int, seed: int) -> list[Member]:
        # A sample's weights are made anew from its seed each time: memory does not grow with samples.
        seeds = [g.initial_seed() for g in sample_generators(samples, seed, torch.device("cpu"))]
        return [lambda s=s: self._sample(s) for s in seeds]

    def resting(self) -> list[Member]:
        return [nullcontext]

    def state_dict(self) -> dict[str, Tensor]:
        return self.posterior.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.posterior.load_state_dict(state)

    def header(self) -> dict[str, Any]:
        return self.posterior.header()

    def _sample(self, seed: int) -> AbstractContextManager[Any]:
        generator = torch.Generator(self.posterior.rho.device).manual_seed(seed)
        return self.posterior.sample(generator=generator)


class SharpenedLearner(PosteriorLearner):
    """Bayes by Backprop with posterior sharpening; the ensemble is that of q(phi)."""

    def __init__(self, sharpened: Sharpened) -> None:
        super().__init__(sharpened.posterior)
        self.sharpened = sharpened

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.sharpened.parameters()

    def backward(self, closure: Callable[[], T], *, kl_weight: float, generator: Generator) -> T:
        return self.sharpened.backward(closure, kl_weight=kl_weight, generator=generator)

    def state_dict(self) -> dict[str, Tensor]:
        return self.sharpened.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.sharpened.load_state_dict(state)

    def header(self) -> dict[str, Any]:
        return self.sharpened.header()


def _dropout_of(module: nn.Module) -> float:
    if isinstance(module, nn.Dropout):
        return module.p
    return module.p if isinstance(module, VariationalDropoutLM) else 0.0


def _dropout_member(model: nn.Module, seed: int) -> Member:
    """The model in training mode, with a random stream of its own that goes on from block to block.

    With variational dropout it begins anew each time that the model is called: the same masks for a whole
    text, however it is cut.
    """
    stream = torch.Generator().manual_seed(seed).get_state()
    same_masks = isinstance(model, VariationalDropoutLM)

    def begin_anew() -> None:
        if same_masks:
            torch.set_rng_state(stream)

    @contextmanager
    def dropping() -> Iterator[None]:
        nonlocal stream
        outside, mode = torch.get_rng_state(), model.training
        torch.set_rng_state(stream)
        hook = model.register_forward_pre_hook(lambda *_: begin_anew())
        model.train()
        try:
            yield
        finally:
            hook.remove()
            model.train(mode)
            stream = stream if same_masks else torch.get_rng_state()
            torch.set_rng_state(outside)

    return dropping
