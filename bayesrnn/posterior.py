"""Posterior: a distribution over the weights of an ordinary module, trained by Bayes by Backprop."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

import torch
from torch import Generator, Tensor, nn

from bayesrnn import init, persistence
from bayesrnn.gradients import add_grads, check_closure, checked_kl_weight, loss_of, without_graph
from bayesrnn.kernels import noise, passes
from bayesrnn.storage import load_tensors, save_tensors
from bayesrnn.torch_private import versions
from bayesrnn.variational import gaussian, priors
from bayesrnn.variational.centred import Centred
from bayesrnn.variational.grouped import Grouped, check_prior
from bayesrnn.variational.normal import EmpiricalNormal
from bayesrnn.variational.priors import Prior
from bayesrnn.variational.row_mixture import RowScaleMixture
from bayesrnn.warn import warn
from bayesrnn.weights import processes
from bayesrnn.weights.flat import FlatWeights, release_all
from bayesrnn.weights.layout import Layout
from bayesrnn.weights.select import Select

T = TypeVar("T")
KLGradient = Literal["sampled", "expected"]
UNUSED = (
    "the gradient of the last draw was never used; call accumulate_grad(draw) after each block."
)
_ELSEWHERE = {
    "eval": "; call posterior.model.eval()",
    "train": "; call posterior.model.train()",
    "predict": "; call bayesrnn.predict(posterior, x)",
}
"""Where to find what people look for here."""
LARGEST_SCORE_ERROR = 0.05
"""What an approximate expected score may be off by."""


class Draw:
    """One sample of the weights, theta = mu + sigma * eps, and in time the gradient of the loss at it.

    It is a value: it does not change when mu does, and theta is never written to. It belongs to the mean it
    was drawn from, so it has to be used before the next optimiser step; and once, after which it is spent.
    """

    def __init__(
        self, theta: Tensor, sigma: Tensor, mu: nn.Parameter, weights: FlatWeights
    ) -> None:
        self.theta = theta
        """The sampled weights, a flat vector."""
        self.sigma = sigma
        self.spent = False
        """Whether its gradient has been accumulated; sigma has then become a gradient."""
        self.leaves: Sequence[Tensor] = weights.leaves(theta)
        """theta as the model holds it inside `sample()`; their `.grad` is what backward leaves."""
        self._weights = weights
        self._mu = mu
        self._versions = versions(mu, theta)
        self._g: Tensor | None = None

    @property
    def g(self) -> Tensor | None:
        """The gradient of the loss at theta, a flat vector, or None; a change of it counts."""
        new = None if self.spent else self._weights.flatten([leaf.grad for leaf in self.leaves])
        if new is not None:
            for leaf in self.leaves:
                leaf.grad = None
            self._g = new if self._g is None else self._g.add_(new)
        return self._g

    def is_of(self, mu: nn.Parameter) -> bool:
        """Whether it was drawn around this mean."""
        return self._mu is mu

    @property
    def has_grad(self) -> bool:
        return self._g is not None or any(leaf.grad is not None for leaf in self.leaves)

    @property
    def eps(self) -> Tensor:
        """The noise that theta has, after its rounding, a flat vector; 0 for padding rows."""
        self.check()
        return gaussian.noise_at(self.theta, self._mu.detach(), self.sigma)

    def spend(self) -> None:
        """Its gradient has been accumulated: g has become that of mu, sigma that of rho."""
        self.spent, self._g = True, None

    def check(self, *, after_block: bool = False) -> None:
        """Raise if the draw can no longer be used, or if that happened inside its block."""
        if self.spent:
            raise ValueError(
                "this draw is spent, its gradient has been accumulated: call kl(draw) before "
                "accumulate_grad, and accumulate each draw once."
            )
        mean, theta = versions(self._mu, self.theta)
        if after_block and (mean, theta) != self._versions:
            raise ValueError(
                "the weights were changed inside the block (an optimiser step, or an in-place edit). Step "
                "after the block."
            )
        if mean != self._versions[0]:
            raise ValueError(
                "the mean has changed since this draw was made; call accumulate_grad or kl(draw) "
                "before optimizer.step()."
            )
        if theta != self._versions[1]:
            raise ValueError(
                "the sampled weights were changed in place, so they are no sample any more."
            )

    def __repr__(self) -> str:
        return f"Draw({len(self.theta):,} weights{', spent' if self.spent else ''})"


class Posterior:
    """q(theta) = N(mu, diag(sigma^2)) over the weights of `model`, with sigma = softplus(rho).

    The model gets two parameters, mu and rho, in place of its Bayesian weights, which become plain tensors:
    views of mu, except inside `sample()`. So at rest the model is an ordinary trained model at the posterior
    mean; `model.parameters()`, `model.state_dict()` and all that use them see the whole posterior.
    """

    def __init__(
        self,
        model: nn.Module,
        prior: Prior | RowScaleMixture | EmpiricalNormal | Centred | Grouped,
        *,
        select: Select = None,
        sigma_init: float | init.SigmaRule | None = None,
        kl_gradient: KLGradient | None = None,
        sigma_temperature: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        """
        Args:
            model: any module. Make the optimiser afterwards.
            prior: see `bayesrnn.variational.priors`; anything with `log_prob` will do.
            select: names ("lstm.*", a list of them) or a predicate; None for all that train, but for the
                gains and biases of normalisation layers, which a prior around 0 would switch off.
            sigma_init: a number or a rule from `bayesrnn.init`; by default a tenth of each
                tensor's root mean square.
            kl_gradient: "sampled" differentiates log q - log p at each draw, as the paper does;
                "expected" differentiates the KL itself, without the noise of the prior's score. By default
                "expected" for priors that have an accurate `expected_score`, and "sampled" for others.
            sigma_temperature: a factor on the KL in sigma's gradient. 1 is the ELBO; below 1 sigma
                follows the data more closely, and what is descended is no longer a bound.
            generator: the randomness of `sigma_init`, for rules that have any.
        """
        if not (sigma_temperature >= 0 and math.isfinite(sigma_temperature)):
            raise ValueError(
                f"sigma_temperature={sigma_temperature} must be a finite number, 0 or more."
            )
        self.model = model
        self.sigma_temperature = sigma_temperature
        if torch.is_inference_mode_enabled():
            raise ValueError("make the Posterior outside torch.inference_mode().")
        self.weights = FlatWeights(model, select)
        self.layout: Layout = self.weights.layout
        """Which stretch of a flat vector is which weight."""
        self._asked_kl_gradient: KLGradient | None = kl_gradient
        self.prior = prior
        mu = self.weights.start()
        sigma = init.initial_sigma(self.layout, mu, sigma_init, self._prior_parts, generator)
        if self.weights.owners():
            warn(
                "this model is already Bayesian: sigma starts anew; go on with the Posterior it has, or wrap "
                "posterior.plain_model() to begin again."
            )
        # Every check has passed: only now is the model touched.
        self.weights.bind(mu=nn.Parameter(mu), rho=nn.Parameter(gaussian.rho_from_sigma(sigma)))
        self._processes_checked = False
        self._unused: Draw | None = None  # the last draw with a gradient, until that is accumulated

    @property
    def mu(self) -> nn.Parameter:
        """The mean, a flat vector, whatever the model holds."""
        return self.weights.flat["mu"]

    @property
    def rho(self) -> nn.Parameter:
        """What decides sigma = softplus(rho), a flat vector."""
        return self.weights.flat["rho"]

    @property
    @torch.no_grad()
    def sigma(self) -> Tensor:
        """The standard deviations, a flat vector, computed from rho; 0 for padding rows."""
        return self.layout.fill_fixed(gaussian.sigma_from_rho(self.rho))

    @property
    def prior(self) -> Any:
        """p(theta). A new one may be set at any time: `posterior.prior = posterior.as_prior()`."""
        return self._prior

    @prior.setter
    def prior(self, prior: Any) -> None:
        if not isinstance(prior, Grouped):
            check_prior(prior, "prior")
        parts = priors.bind(prior, self.layout)
        self.kl_gradient: KLGradient = _checked_kl_gradient(self._asked_kl_gradient, parts)
        self._prior, self._prior_parts = prior, parts

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimiser trains, as `model.parameters()` has it: mu, rho and the ordinary parameters."""
        yield self.mu
        yield self.rho
        yield from self.weights.ordinary_parameters()

    # ------------------------------------------------------------------ sampling and training

    @contextmanager
    def sample(self, *, generator: Generator | None = None) -> Iterator[Draw]:
        """Inside the block the model holds theta = mu + sigma * eps, for as many steps as it runs.

        Call `loss.backward()` inside it, then `accumulate_grad`, then the optimiser. After the block backward
        works too, but not with gradient checkpointing, which would run forward again at the mean.
        """
        draw = self.draw(generator=generator)
        with self.weights.holding(draw.leaves):
            yield draw
        if draw.spent:
            return
        draw.check(after_block=True)
        if draw.has_grad and self.weights.at_rest:
            if self._unused is not None:
                warn(UNUSED)
            self._unused = draw

    @contextmanager
    def mean(self) -> Iterator[None]:
        """Inside the block the model holds mu, whatever it held outside."""
        with self.weights.holding(None):
            yield

    @torch.no_grad()
    def draw(self, *, generator: Generator | None = None) -> Draw:
        """A fresh draw, not yet placed in the model."""
        self.weights.follow_mean()
        mu, rho = self.mu, self.rho
        with torch.inference_mode(False):  # a vector made inside that mode is of no use outside
            theta, sigma = torch.empty_like(mu), torch.empty_like(mu)
        passes.sample_(theta, sigma, mu, rho, key=noise.new_key(generator, rho.device))
        for span in self.layout.fixed:
            theta[span] = mu[span]
        return Draw(theta, sigma, mu, self.weights)

    @torch.no_grad()
    def accumulate_grad(
        self, draw: Draw, *, kl_weight: float | Tensor, g: Tensor | None = None
    ) -> None:
        """Turn the gradient at `draw` into gradients of mu and rho, added to their `.grad`.

        The free energy that is differentiated is  loss + kl_weight * KL[q || p];  `kl_weight` is the
        share of the KL that this minibatch pays (`Cuts.kl_weight` and `Minibatches.kl_weight` compute it).
        `g` is the gradient of the loss with respect to the draw, if it is not the one that backward left; it
        is used up.
        """
        self._unused = None  # also where it is refused below, which says enough
        kl_weight = checked_kl_weight(kl_weight)
        mu, rho = self.mu, self.rho
        if not (isinstance(draw, Draw) and draw.is_of(mu)):
            raise ValueError("this is no draw of this posterior; use what its sample() gave.")
        draw.check()
        g = draw.g if g is None else g
        if g is not None and (g.shape, g.dtype) != (mu.shape, mu.dtype):
            raise ValueError(
                f"g is {tuple(g.shape)} {g.dtype}; it must be as mu: {tuple(mu.shape)} {mu.dtype}."
            )
        if g is None:
            raise ValueError(
                "this draw has no gradient: call loss.backward() on a loss that was computed inside the "
                "`with posterior.sample() as draw:` block, and accumulate each draw once."
            )
        # As exact as the passes compute, and where they do, so that they need not convert it.
        weight = torch.full((), kl_weight, dtype=g.dtype, device=g.device)
        weights = {"kl_weight": weight, "sigma_weight": weight * self.sigma_temperature}
        expected = self.kl_gradient == "expected"
        gradients = passes.expected_gradients_ if expected else passes.sampled_gradients_
        for span, prior in self.prior_parts():
            vectors = (v[span] for v in (g, draw.sigma, draw.theta, mu.detach()))
            passes.with_prior(gradients, *vectors, prior=prior, **weights)
        for span in self.layout.fixed:
            g[span] = draw.sigma[span] = 0
        add_grads({mu: g, rho: draw.sigma})
        draw.spend()

    def backward(
        self,
        closure: Callable[[], T],
        *,
        kl_weight: float | Tensor,
        generator: Generator | None = None,
    ) -> T:
        """Sample, call `closure` for a loss (or a tuple that begins with it), backward, accumulate.

        Returns what the closure returned, the loss without its graph. One optimiser step's gradients in one
        call.
        """
        check_closure(closure)
        with self.sample(generator=generator) as draw:
            value = closure()
            loss_of(value).backward()
        self.accumulate_grad(draw, kl_weight=kl_weight)
        return without_graph(value)

    def all_reduce_grads(self) -> None:
        """Average the gradients of all processes (torch.distributed), between accumulate_grad and the step.

        For models that no DistributedDataParallel wraps; kappa and the ordinary parameters are averaged too.
        With one process nothing happens.
        """
        if not self._processes_checked:
            processes.check_equal(mu=self.mu, rho=self.rho)
            self._processes_checked = True
        processes.average_grads(p for p in self.model.parameters() if p.requires_grad)

    def scale_lr(self, factors: Mapping[str, float]) -> None:
        """Give some weights another learning rate: a factor for each name pattern, {"embedding.*": 0.1}.

        Every step of an optimiser then goes that far for the mu, rho and kappa of these weights, whatever the
        optimiser; 0 freezes them. The first pattern that matches counts; weights that none matches have 1.
        """
        self.weights.scale_steps(factors)

    # ------------------------------------------------------------------ quantities of q

    @torch.no_grad()
    def snr(self) -> Tensor:
        """|mu| / sigma for every weight; infinite for padding rows, which carry no noise."""
        ratio = gaussian.signal_to_noise(self.mu, gaussian.sigma_from_rho(self.rho))
        return self.layout.fill_fixed(ratio, math.inf)

    @torch.no_grad()
    def kl(self, draw: Draw | None = None) -> Tensor:
        """KL[q || p] in nats: by closed form or quadrature, or from one draw, log q - log p at theta."""
        if draw is None:
            return self.kl_per_weight().sum()
        eps = draw.eps  # which checks the draw
        log_q = gaussian.log_prob_at_noise(draw.sigma, eps)
        log_p, tied = torch.zeros_like(log_q), log_q.new_zeros(())
        for span, prior in self.prior_parts():
            part = prior.log_prob(draw.theta[span])
            if part.shape == log_p[span].shape:
                log_p[span] = part
            else:  # not by weight, and without padding rows
                tied += part.sum()
        return self.layout.fill_fixed(log_q - log_p).sum() - tied

    @torch.no_grad()
    def kl_per_weight(self) -> Tensor:
        """KL[q || p] of each weight in nats, for priors that treat weights apart.

        Exact for normal priors; to some 1e-7 for the mixture; by Gauss-Hermite quadrature for others.
        """
        mu, sigma = self.mu.detach(), gaussian.sigma_from_rho(self.rho)
        kl = torch.empty_like(mu)
        for span, prior in self.prior_parts():
            passes.kl_per_weight(kl[span], mu[span], sigma[span], prior=prior)
        return self.layout.fill_fixed(kl)

    def description_length(self) -> float:
        """The bits it takes to send the weights by bits-back coding: KL[q || p] / log 2."""
        return self.kl().item() / math.log(2)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as views by weight name: `posterior.named(posterior.snr())`."""
        return self.weights.named(vector)

    def as_prior(self) -> Centred:
        """What has been learnt, N(mu, sigma^2), as a prior for what is to be learnt next."""
        sigma = gaussian.sigma_from_rho(self.rho.detach())
        return Centred(self.named(self.mu.detach()), self.named(sigma))

    def prior_parts(self) -> list[priors.Part]:
        """The prior of each stretch of the flat vector, with what it learns brought up to date with q."""
        mu, rho = self.mu.detach(), self.rho.detach()
        return [part.at(mu, rho) for part in self._prior_parts]

    def __repr__(self) -> str:
        norms = len(self.weights.left_out)
        kept = f", {norms} gains and biases of norms left out" if norms else ""
        return (
            f"Posterior({type(self.model).__name__}, {self.layout.size:,} Bayesian weights in "
            f"{len(self.layout.slots)} tensors{kept}, prior={self.prior})"
        )

    if not TYPE_CHECKING:  # so that type checkers still know what there is

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"a Posterior has no {name!r}{_ELSEWHERE.get(name, '')}.")

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            raise TypeError(
                "a Posterior is not called: use posterior.model(x) for the mean weights, or "
                "bayesrnn.predict(posterior, x)."
            )

    # ------------------------------------------------------------------ state

    def to(self, *args: Any, **kwargs: Any) -> Posterior:
        """Move or convert the model, as `model.to` does; mu and rho stay in float32 at least."""
        self.model.to(*args, **kwargs)
        return self

    def plain_model(self, draw: Draw | None = None) -> nn.Module:
        """A copy of the model as an ordinary module, at the mean or at one draw: to export or to hand on."""
        model = copy.deepcopy(self.weights.model)
        if draw is not None:
            draw.check()
            with torch.no_grad():
                model.get_parameter(f"{self.weights.prefix}_mu").copy_(draw.theta)
        release_all(model)
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """mu and rho by weight name, and the model's other parameters and buffers: live, not copies."""
        return persistence.state_of(self)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` in. Names and shapes are checked first; on error nothing changes."""
        persistence.load_state(self, self.state_dict(), state)

    def save(self, path: str | os.PathLike[str], *, frozen: bool = True) -> None:
        """Write one safetensors file with the state, the prior and the selection.

        With `frozen=False` it has none of the parameters that are frozen, as a pretrained network's are under
        an adapter; `load` then takes them from the model it is given, and warns if they are others.
        """
        state, header = self.state_dict(), self.header()
        if not frozen:
            state, entries = persistence.without_frozen(self, state)
            header |= entries
        save_tensors(path, {**state, **persistence.prior_tensors(self)}, header)

    def header(self) -> dict[str, Any]:
        """What a file says beside the tensors: format, prior, selection."""
        return persistence.header_of(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, prior: Any = None) -> Posterior:
        """The posterior that `save` wrote, around a fresh `model` of the same architecture.

        What was frozen when it was saved is frozen again. `prior` is needed only if the saved one was of the
        user's own making.
        """
        persistence.check_arguments(path, model)
        state, header = load_tensors(path)
        return persistence.from_state(cls, state, header, model, prior, source=str(path))


def _checked_kl_gradient(asked: KLGradient | None, parts: list[priors.Part]) -> KLGradient:
    """How the KL's gradient is taken: as asked, if every part of the prior can do that."""
    known = get_args(KLGradient)
    if asked is not None and asked not in known:
        raise ValueError(f"kl_gradient={asked!r}; use {' or '.join(map(repr, known))}.")
    reasons = [reason for part in parts if (reason := _no_expected_score(part.prior))]
    if asked == "expected" and reasons:
        raise ValueError(f"kl_gradient='expected' {reasons[0]}; use 'sampled'.")
    return asked or ("sampled" if reasons else "expected")


def _no_expected_score(prior: Any) -> str | None:
    """Why this prior has no accurate expected score, if it has none."""
    name = type(prior).__name__.removeprefix("_Bound")
    fits = hasattr(prior, "fit")  # its fitted forms all have an expected score
    error = getattr(prior, "expected_score_error", 0.0)
    if not (fits or hasattr(prior, "expected_score")):
        return f"needs a prior with expected_score(mu, sigma), which {name} has not"
    if error > LARGEST_SCORE_ERROR:
        return f"would be {error:.0%} off for so extreme a {name}"
    return None
