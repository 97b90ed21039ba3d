"""Posterior: a distribution over the weights of an ordinary module, trained by Bayes by Backprop."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Generator, Tensor, nn

from bayesrnn import init
from bayesrnn.buffers import Buffers, has_views
from bayesrnn.flat import FlatWeights, Select
from bayesrnn.gradients import add_grad, check_closure, check_kl_weight, loss_of
from bayesrnn.storage import check_state, copy_state, load_tensors, save_tensors
from bayesrnn.variational import gaussian, noise, passes, priors
from bayesrnn.variational.layout import Layout
from bayesrnn.variational.pieces import Pieces
from bayesrnn.variational.priors import EmpiricalNormal, Prior, RowScaleMixture

FORMAT = "bayesrnn-posterior-1"
IDLE_ACCUMULATIONS = 200
T = TypeVar("T")
KLGradient = Literal["sampled", "expected"]


@dataclass(eq=False, repr=False)
class Draw:
    """One sample of the weights, theta = mu + sigma * eps.

    It is spent once its gradient has been accumulated: theta and sigma become the gradients.
    """

    theta: Tensor
    sigma: Tensor
    mean_changes: int
    """How often the mean had been changed when this was drawn; the draw is of that mean only."""
    g_in_pieces: Pieces | None = None
    """The gradient of the loss at theta, once the block of `sample()` has ended."""

    @property
    def g(self) -> Tensor | None:
        """That gradient as one flat vector; a change of it counts."""
        if self.g_in_pieces is None:
            return None
        if len(self.g_in_pieces.parts) == 1:
            return self.g_in_pieces.parts[0]
        g = self.g_in_pieces.joined()
        self.g_in_pieces = Pieces((g,))
        return g


class Posterior:
    """q(theta) = N(mu, diag(sigma^2)) over the weights of `model`, with sigma = softplus(rho).

    The model is not changed but for this: its Bayesian parameters become views of one flat vector,
    that of mu except inside `sample()`. At rest the model is therefore an ordinary trained
    model at the posterior mean, and an optimiser that moves `mu` moves the model.
    """

    mu: nn.Parameter
    """The mean; inside `sample()` it shows the sample, as the model does."""
    rho: nn.Parameter

    def __init__(
        self,
        model: nn.Module,
        prior: Prior | RowScaleMixture | EmpiricalNormal,
        *,
        select: Select = None,
        sigma_init: float | init.SigmaRule | None = None,
        kl_gradient: KLGradient = "sampled",
        sigma_temperature: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        """
        Args:
            model: any module, already on its device and in its dtype.
            prior: see `bayesrnn.variational.priors`; anything with `log_prob` will do.
            select: names ("lstm.*", a list of them) or a predicate; None for all that train.
            sigma_init: a number or a rule from `bayesrnn.init`; by default a tenth of each
                tensor's root mean square.
            kl_gradient: "sampled" differentiates log q - log p at each draw, as the paper does;
                "expected" differentiates the KL itself, without the noise of the prior's score,
                for priors that have `expected_score`: all of bayesrnn's but RowScaleMixture.
            sigma_temperature: a factor on the KL in sigma's gradient. 1 is the ELBO; below 1 sigma
                follows the data more closely, and what is descended is no longer a bound.
            generator: the randomness of `sigma_init`, for rules that have any.
        """
        if isinstance(prior, type):
            raise ValueError(f"prior is the class {prior.__name__}; give its parameters.")
        if not callable(getattr(prior, "log_prob", None) or getattr(prior, "bind", None)):
            raise ValueError(f"prior={prior!r} has no log_prob(theta) method.")
        self.model = model
        self.prior = prior
        self.weights = FlatWeights(model, select)
        self._bound_prior = priors.bind(prior, self.layout)
        self.kl_gradient = kl_gradient
        self._check_kl_gradient()
        if not (sigma_temperature >= 0 and math.isfinite(sigma_temperature)):
            raise ValueError(
                f"sigma_temperature={sigma_temperature} must be a finite number, 0 or more."
            )
        self.sigma_temperature = sigma_temperature
        sigma = init.initial_sigma(
            self.layout, self.weights.flat, sigma_init, self._bound_prior, generator
        )
        # Every check has passed: only now is the model touched.
        self.mu = self.weights.whole
        self.rho = nn.Parameter(gaussian.rho_from_sigma(sigma))
        self.weights.bind()

        self._in_model: Draw | None = None  # the draw whose weights the model holds
        self.buffers = Buffers(self.rho.detach())
        self._unused: Draw | None = None  # the last draw with a gradient, until that is accumulated
        self._idle = 0  # accumulations since the mean last changed
        self._seen_changes = 0

    @property
    def layout(self) -> Layout:
        return self.weights.layout

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimiser trains: mu, rho and the model's ordinary parameters."""
        yield self.mu
        yield self.rho
        yield from self.weights.rest()

    # ------------------------------------------------------------------ sampling and training

    @contextmanager
    def sample(self, *, generator: Generator | None = None) -> Iterator[Draw]:
        """Inside the block the model holds theta = mu + sigma * eps, for as many steps as it runs.

        Call `loss.backward()` inside it, and `accumulate_grad` and the optimiser after it.
        """
        with self.weights.own_grads():
            with self.placed_draw(generator=generator) as draw:
                yield draw
            if draw.g_in_pieces is None and hasattr(draw, "theta"):
                draw.g_in_pieces = self.weights.take_grad()
        if draw.g_in_pieces is not None and self._at_rest:
            self._warn_if_unused()
            self._unused = draw

    @contextmanager
    def mean(self) -> Iterator[None]:
        """Inside the block the model holds mu, whatever it held outside."""
        with self.place(self.current_mu()):
            yield

    def accumulate_grad(self, draw: Draw, *, kl_weight: float) -> None:
        """Turn the gradient at `draw` into gradients of mu and rho, added to their `.grad`.

        The free energy that is differentiated is  loss + kl_weight * KL[q || p];  `kl_weight` is the
        share of the KL that this minibatch pays (`Cuts.kl_weight` computes it).
        """
        check_kl_weight(kl_weight)
        self._check_current(draw)
        g = self._grad_inside(draw) if draw.g_in_pieces is None else draw.g_in_pieces
        if g is None:
            raise ValueError(
                "this draw has no gradient: call loss.backward() inside the "
                "`with posterior.sample() as draw:` block, and accumulate each draw once."
            )
        self._warn_if_idle()
        self.accumulate(draw, g, kl_weight=kl_weight)
        self._unused = None

    def backward(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None = None
    ) -> T:
        """Sample, call `closure` for a loss (or a tuple that begins with it), backward, accumulate.

        Returns what the closure returned. One optimiser step's gradients in one call.
        """
        check_closure(closure)
        with self.sample(generator=generator) as draw:
            value = closure()
            loss_of(value).backward()
        self.accumulate_grad(draw, kl_weight=kl_weight)
        return value

    # ------------------------------------------------------------------ quantities of q

    @torch.no_grad()
    def sigma(self) -> Tensor:
        """The posterior's standard deviations, a flat vector; 0 for padding rows."""
        return self.zero_fixed(gaussian.sigma_from_rho(self.rho))

    @torch.no_grad()
    def snr(self) -> Tensor:
        """|mu| / sigma for every weight; infinite for padding rows, which carry no noise."""
        ratio = gaussian.signal_to_noise(self.current_mu(), gaussian.sigma_from_rho(self.rho))
        return self._fill_fixed(ratio, math.inf)

    @torch.no_grad()
    def kl(self, draw: Draw | None = None) -> Tensor:
        """KL[q || p] in nats: by closed form or quadrature, or from one draw, log q - log p at theta."""
        if draw is None:
            return self.kl_per_weight().sum()
        eps = self.noise_of(draw)  # which checks the draw
        log_q = self.zero_fixed(gaussian.log_prob_at_noise(draw.sigma, eps))
        log_p = self.fitted_prior().log_prob(draw.theta)
        if log_p.shape == log_q.shape:
            log_p = self.zero_fixed(log_p)
        return log_q.sum() - log_p.sum()

    @torch.no_grad()
    def kl_per_weight(self) -> Tensor:
        """KL[q || p] of each weight in nats, for priors that treat weights apart.

        Exact for normal priors; to some 1e-7 for the mixture; by Gauss-Hermite quadrature for others.
        """
        mu, sigma = self.current_mu(), gaussian.sigma_from_rho(self.rho)
        expected = priors.expected_log_prob(self.fitted_prior(), mu, sigma)
        return self.zero_fixed(-gaussian.entropy(sigma) - expected)

    def description_length(self) -> float:
        """The bits it takes to send the weights by bits-back coding: KL[q || p] / log 2."""
        return self.kl().item() / math.log(2)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as views by weight name: `posterior.named(posterior.snr())`."""
        return self.weights.named(vector)

    def __repr__(self) -> str:
        return (
            f"Posterior({type(self.model).__name__}, {self.layout.size:,} Bayesian weights in "
            f"{len(self.layout.slots)} tensors, prior={self.prior})"
        )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Tensor]:
        """mu and rho by weight name, and the model's other parameters and buffers."""
        self.weights.check()
        return _state_of(self.weights, self.current_mu(), self.rho.detach())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` in. Names and shapes are checked first; on error nothing changes."""
        self.check_at_rest()
        copy_state(self.state_dict(), state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file with the state, the prior and the selection."""
        save_tensors(path, self.state_dict(), self.header())

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, prior: Any = None) -> Posterior:
        """The posterior that `save` wrote, around a fresh `model` of the same architecture.

        `prior` is needed only if the saved one was of the user's own making.
        """
        state, header = load_tensors(path)
        return cls.from_state(state, header, model, prior, source=str(path))

    def header(self) -> dict[str, Any]:
        """What a file says beside the tensors: format, prior, selection."""
        return {
            "format": FORMAT,
            "prior": priors.to_config(self.prior),
            "prior_type": type(self.prior).__qualname__,
            "select": [slot.name for slot in self.layout],
            "kl_gradient": self.kl_gradient,
            "sigma_temperature": self.sigma_temperature,
        }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Tensor],
        header: Mapping[str, Any],
        model: nn.Module,
        prior: Any = None,
        *,
        source: str = "the state",
    ) -> Posterior:
        """A posterior around `model` from a `state_dict` and a `header`."""
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{source} has format {header.get('format')!r}, not {FORMAT!r}: "
                "it was written by another version, or is no posterior."
            )
        if prior is None:
            if header["prior"] is None:
                raise ValueError(
                    f"{source} was saved with a prior of type {header['prior_type']}, which only "
                    "its author can make: pass it as prior=."
                )
            prior = priors.from_config(header["prior"])
        ours = {k: v for k, v in state.items() if k.startswith(("mu.", "rho.", "model."))}
        model_inside = getattr(model, "_orig_mod", model)
        trainable = {name for name, p in model_inside.named_parameters() if p.requires_grad}
        known = {name for name, _ in model_inside.named_parameters()}
        for name in header["select"]:
            if name not in known:
                raise ValueError(
                    f"{source} has weights {name!r}; this model has none of that name, but "
                    f"{', '.join(sorted(known)[:6])}. Build the architecture it was saved with."
                )
            if name not in trainable:
                raise ValueError(
                    f"{source} has Bayesian weights {name!r}, which are frozen in this model; call "
                    "requires_grad_(True) before loading."
                )

        def select(name: str, _: nn.Parameter) -> bool:
            return name in header["select"]

        unbound = FlatWeights(model, select)
        check_state(_state_of(unbound, unbound.flat, unbound.flat), ours, source)
        posterior = cls(
            model,
            prior,
            select=select,
            kl_gradient=header.get("kl_gradient", "sampled"),
            sigma_temperature=header.get("sigma_temperature", 1.0),
        )
        posterior.load_state_dict(ours)
        return posterior

    # ------------------------------------------------------------------ for methods built on q

    @torch.no_grad()
    def draw(self, *, generator: Generator | None = None) -> Draw:
        """A fresh draw, not yet placed in the model."""
        self.weights.check()
        theta, sigma = self.buffers.take(), self.buffers.take()
        key = self.noise_key(generator)
        passes.sample_(theta, sigma, self.current_mu(), self.rho.detach(), key=key)
        self.fix(theta)
        return Draw(theta, sigma, self.weights.changes())

    @torch.no_grad()
    def noise_of(self, draw: Draw) -> Tensor:
        """The noise eps of a draw, after the rounding of theta, a flat vector; 0 for padding rows."""
        self._check_current(draw)
        return gaussian.noise_at(draw.theta, self.current_mu(), draw.sigma)

    @torch.no_grad()
    def noise(self, *, generator: Generator | None = None) -> Tensor:
        """eps ~ N(0, I), a flat vector; 0 for padding rows."""
        return self.zero_fixed(noise.normal_(self.buffers.take(), self.noise_key(generator)))

    def noise_key(self, generator: Generator | None) -> Tensor:
        """The key of one vector of noise; the next call gives another."""
        return noise.new_key(generator, self.rho.device)

    def current_mu(self) -> Tensor:
        """The memory of mu, also while the model, and `mu` with it, holds something else."""
        return self.weights.flat

    def place(self, theta: Tensor) -> AbstractContextManager[None]:
        """Inside the block the model holds a copy of `theta`; after it, and after an error, what it held."""
        copy = self.buffers.take()
        copy.copy_(theta.detach())
        return self._placed(copy)

    @contextmanager
    def placed_draw(self, *, generator: Generator | None = None) -> Iterator[Draw]:
        """Draw; inside the block the model holds the drawn weights."""
        draw = self.draw(generator=generator)
        with self._placed(draw.theta, draw):
            yield draw

    def replace(self, theta: Tensor) -> None:
        """Inside `place` or `placed_draw`: from now on the model holds this very vector."""
        assert not self._at_rest
        self._in_model = None
        self.weights.show(theta)

    @torch.no_grad()
    def accumulate(self, draw: Draw, g: Tensor | Pieces, *, kl_weight: float) -> None:
        """Add the gradients of mu and rho that follow from g, the loss gradient at the draw.

        The draw is used up: theta becomes the gradient of mu, sigma that of rho.
        """
        prior: Any = self.fitted_prior()
        expected = self.kl_gradient == "expected"
        gradients = passes.expected_gradients_ if expected else passes.sampled_gradients_
        if not getattr(prior, "elementwise", False):
            gradients = gradients.function
            g = g.joined(self.buffers.take()) if isinstance(g, Pieces) else g
        theta, sigma = draw.theta, draw.sigma
        if has_views(theta):  # the model's inside the block, or a user's own
            theta = self.buffers.take().copy_(theta)
        # As exact as the passes compute, so that they need not convert it.
        weight = torch.tensor(kl_weight, dtype=torch.promote_types(theta.dtype, torch.float32))
        sigma_weight = weight * self.sigma_temperature
        mu = self.current_mu()
        gradients(theta, sigma, mu, g, prior=prior, kl_weight=weight, sigma_weight=sigma_weight)
        add_grad(self.mu, self.zero_fixed(theta))
        add_grad(self.rho, self.zero_fixed(sigma))
        del draw.theta, draw.sigma
        draw.g_in_pieces = None

    def fix(self, theta: Tensor) -> None:
        """Give a vector of weights the padding rows of mu, in place."""
        for span in self.layout.fixed:
            theta[span] = self.current_mu()[span]

    def zero_fixed(self, vector: Tensor) -> Tensor:
        """Zero a flat vector's padding rows, in place."""
        return self._fill_fixed(vector, 0.0)

    def fitted_prior(self) -> Prior:
        """The prior, its learnt hyper-parameters brought up to date with q."""
        fit = getattr(self._bound_prior, "fit", None)
        if fit is None:
            return self._bound_prior
        return fit(self.current_mu(), gaussian.sigma_from_rho(self.rho.detach()))

    # ------------------------------------------------------------------ helpers

    def _check_kl_gradient(self) -> None:
        known = get_args(KLGradient)
        if self.kl_gradient not in known:
            raise ValueError(
                f"kl_gradient={self.kl_gradient!r}; use {' or '.join(map(repr, known))}."
            )
        fits = hasattr(self._bound_prior, "fit")  # its fitted forms all have one
        if self.kl_gradient == "expected" and not (
            fits or hasattr(self._bound_prior, "expected_score")
        ):
            raise ValueError(
                f"kl_gradient='expected' needs a prior with expected_score(mu, sigma), which "
                f"{type(self.prior).__name__} has not; use 'sampled'."
            )

    @contextmanager
    def _placed(self, theta: Tensor, draw: Draw | None = None) -> Iterator[None]:
        """Inside the block the model holds this very vector."""
        before, in_model = self.weights.changes(), self._in_model
        with self.weights.showing(theta):
            try:
                self._in_model = draw
                yield
            finally:
                self._in_model = in_model
        if self.weights.changes() != before:
            raise ValueError(
                "the weights were changed inside the block (an optimiser step, or an in-place "
                "edit); the model has its own again. Step after the block."
            )

    @property
    def _at_rest(self) -> bool:
        return self.weights.shown is self.weights.flat

    def check_at_rest(self) -> None:
        """Raise if the model holds anything but the mean."""
        if not self._at_rest:
            raise ValueError("load_state_dict inside sample(): leave the block first.")
        self.weights.check()

    def _grad_inside(self, draw: Draw) -> Pieces | None:
        """The gradient of a draw whose block has not ended yet."""
        return self.weights.take_grad() if self._in_model is draw else None

    def _check_current(self, draw: Draw) -> None:
        if isinstance(draw, Draw) and not hasattr(draw, "theta"):
            raise ValueError(
                "this draw is spent, its weights have become a gradient: call kl(draw) before "
                "accumulate_grad, and accumulate each draw once."
            )
        if not isinstance(draw, Draw) or draw.theta.shape != self.rho.shape:
            raise ValueError("this is no draw of this posterior; use what its sample() gave.")
        if draw.mean_changes != self.weights.changes():
            raise ValueError(
                "the mean has changed since this draw was made; call accumulate_grad or kl(draw) "
                "before optimizer.step()."
            )

    def _warn_if_unused(self) -> None:
        if self._unused is not None:
            warnings.warn(
                "the gradient of the last draw was never used; call accumulate_grad(draw) after each block.",
                stacklevel=5,
            )

    def _warn_if_idle(self) -> None:
        """Gradients pile up: most likely the optimiser was given the model's parameters, the views."""
        changes = self.weights.changes()
        idle = changes == self._seen_changes and self.mu.grad is not None
        self._idle = self._idle + 1 if idle else 1
        self._seen_changes = changes
        if self._idle == IDLE_ACCUMULATIONS:
            warnings.warn(
                f"{IDLE_ACCUMULATIONS} gradients were accumulated and the mean has not moved: the optimiser "
                "must be given posterior.parameters(), not model.parameters().",
                stacklevel=4,
            )

    def _fill_fixed(self, vector: Tensor, value: float) -> Tensor:
        for span in self.layout.fixed:
            vector[span] = value
        return vector


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _state_of(weights: FlatWeights, mu: Tensor, rho: Tensor) -> dict[str, Tensor]:
    return {
        **_prefixed("mu", weights.named(mu)),
        **_prefixed("rho", weights.named(rho)),
        **_prefixed("model", weights.rest_state()),
    }
