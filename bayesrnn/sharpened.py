"""Sharpened: posterior sharpening around any Posterior [F17, sec. 4, Alg. 1]."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn import persistence, ranks
from bayesrnn.devices import rng_state, set_rng_state
from bayesrnn.gradients import add_grads, check_closure, checked_kl_weight, loss_of, without_graph
from bayesrnn.kernels import noise, passes
from bayesrnn.posterior import Posterior
from bayesrnn.storage import load_tensors, save_tensors
from bayesrnn.variational import sharpening

T = TypeVar("T")


@dataclass(frozen=True)
class Bound(Generic[T]):
    """A minibatch scored with the posterior sharpened on that same minibatch."""

    value: T
    """What the closure returned at theta."""
    kl_theta: Tensor
    """KL[q(theta | phi, (x, y)) || p(theta | phi)] in nats; add it to the total nats for the bound (there is
    none without noise)."""


class Sharpened:
    """q(theta | phi, (x, y)) = N(phi - eta * g_phi, sigma0^2) around a posterior q(phi).

    eta is learnt as kappa, eta = kappa * sigma0^2 / loss_scale: kappa = 1 is the step at which
    the KL it costs and the loss it gains balance to first order, whatever the scale of the loss,
    so the same learning rate suits kappa, mu and rho.
    """

    def __init__(
        self,
        posterior: Posterior,
        *,
        loss_scale: float,
        sigma0: float = 0.02,
        kappa_init: float = 0.5,
        exact: bool = False,
    ) -> None:
        """
        Args:
            posterior: q(phi).
            loss_scale: what one nat of the minibatch adds to the loss: 1/N for a loss summed over
                time and averaged over N streams (`Cuts.loss_scale`), 1/(N T) for a mean over words.
            sigma0: the standard deviation of theta around its centre.
            kappa_init: where kappa starts.
            exact: also differentiate through g_phi. Costs a Hessian-vector product a step.
        """
        if not isinstance(posterior, Posterior):
            raise ValueError(f"Sharpened needs a Posterior; got a {type(posterior).__name__}.")
        for name, value in [("loss_scale", loss_scale), ("sigma0", sigma0)]:
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Sharpened: {name}={value} must be a positive, finite number.")
        self.posterior = posterior
        self.loss_scale = loss_scale
        self.sigma0 = sigma0
        self.exact = exact
        posterior.weights.register(
            "kappa", nn.Parameter(torch.full_like(posterior.rho, kappa_init))
        )
        self.kl_theta = torch.zeros((), device=posterior.rho.device)
        """KL_theta of the last minibatch in nats."""
        self.together = False
        """Whether the ranks, which must draw the same noise, sharpen on all their minibatches together: the
        sum of their gradients is then that of one minibatch."""

    @property
    def kappa(self) -> nn.Parameter:
        """The learnt step in its own unit, a flat vector."""
        return self.posterior.weights.flat["kappa"]

    @property
    def eta(self) -> Tensor:
        """The learnt step for every weight, a flat vector."""
        return self.kappa.detach() * self._eta_unit

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimiser trains: kappa and all that the posterior trains."""
        yield self.kappa
        yield from self.posterior.parameters()

    def backward(
        self,
        closure: Callable[[], T],
        *,
        kl_weight: float | Tensor,
        generator: Generator | None = None,
    ) -> T:
        """The gradients of one minibatch for (mu, rho, kappa), added to their `.grad` [F17, Alg. 1].

        `closure` computes the loss of the minibatch with the model as it stands; it is called once
        at phi and once at theta (once more at phi if exact). It must start from the same RNN state
        each time; what it returned at theta, a loss or a tuple that begins with one, is returned, the
        loss without its graph.
        """
        kl_weight = checked_kl_weight(kl_weight)
        check_closure(closure)
        posterior, weights = self.posterior, self.posterior.weights
        phi = posterior.draw(generator=generator)
        rng = rng_state(posterior.rho.device) if self.exact else None
        with weights.holding(phi.leaves):
            g_phi = self._gradient(closure, phi.leaves)
        if self.together:
            ranks.sum_(g_phi)
        theta, self.kl_theta = self._sharpen(phi.theta, g_phi, self._eta_unit, generator)
        leaves = weights.leaves(theta)
        with weights.holding(leaves):
            value = closure()
            loss_of(value).backward()
        g_theta = weights.flatten([leaf.grad for leaf in leaves])
        assert g_theta is not None  # the first pass has shown that the loss reaches the weights
        g = g_theta
        if self.together:
            g_theta = g_theta.clone()
            ranks.sum_(g_theta)
        settings = {"sigma0": self.sigma0, "loss_scale": self.loss_scale}
        if rng is not None:
            u = sharpening.hessian_direction(g_theta, g_phi, self.eta, **settings)
            g = g + self._hessian_product(closure, phi.theta, u, rng)
        kappa, eta_unit = self.kappa.detach(), self._eta_unit
        passes.kappa_gradient_(g_phi, g_theta, kappa, eta_unit=eta_unit, **settings)
        # g_phi is now the gradient of kappa; together, all ranks have the same, and will add it up.
        add_grads({self.kappa: g_phi / ranks.world() if self.together else g_phi})
        posterior.accumulate_grad(phi, kl_weight=kl_weight, g=g)
        return without_graph(value)

    def bound(
        self,
        closure: Callable[[], T],
        *,
        sample_phi: bool = False,
        noise: bool = True,
        loss_scale: float | None = None,
        generator: Generator | None = None,
    ) -> Bound[T]:
        """Score a minibatch with q(theta | phi, (x, y)), at the mean phi or at a sampled one.

        exp((nats + kl_theta) / words) is an upper bound on perplexity, since theta has seen the words. With
        `noise=False` theta is the centre of that posterior, and there is no bound.
        `loss_scale` is that of the closure's loss, where it is not the one of training. To predict
        with q(phi) instead, use the posterior itself: no bound, no KL.
        """
        posterior, weights = self.posterior, self.posterior.weights
        phi = posterior.draw(generator=generator).theta if sample_phi else posterior.mu.detach()
        eta_unit = self.sigma0**2 / (loss_scale or self.loss_scale)
        leaves = weights.leaves(phi)
        with weights.holding(leaves):
            g_phi = self._gradient(closure, leaves)
        if noise:
            theta, kl_theta = self._sharpen(phi, g_phi, eta_unit, generator)
        else:
            eta = self.kappa.detach() * eta_unit
            theta = sharpening.centre(phi, g_phi, eta)
            kl_theta = sharpening.kl_theta(g_phi, eta, self.sigma0)
        with weights.holding(weights.leaves(theta)), torch.no_grad():
            value = closure()
        return Bound(value, kl_theta)

    def state_dict(self) -> dict[str, Tensor]:
        """The posterior's state and kappa by weight name."""
        kappa = self.posterior.named(self.kappa.detach())
        return {
            **self.posterior.state_dict(),
            **{f"kappa.{name}": tensor for name, tensor in kappa.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` in; on error nothing changes."""
        persistence.load_state(self.posterior, self.state_dict(), state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; `Posterior.load` reads it too, for q(phi) alone."""
        tensors = {**self.state_dict(), **persistence.prior_tensors(self.posterior)}
        save_tensors(path, tensors, self.header())

    def header(self) -> dict[str, Any]:
        """The posterior's header and the settings of the sharpening."""
        settings = {"loss_scale": self.loss_scale, "sigma0": self.sigma0, "exact": self.exact}
        return {**persistence.header_of(self.posterior), "sharpened": settings}

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, prior: Any = None) -> Sharpened:
        """What `save` wrote, around a fresh `model` of the same architecture; frozen as it was."""
        persistence.check_arguments(path, model)
        state, header = load_tensors(path)
        if "sharpened" not in header:
            raise ValueError(
                f"{path} holds a posterior that was not sharpened; use Posterior.load."
            )
        posterior = persistence.from_state(Posterior, state, header, model, prior, source=str(path))
        sharpened = cls(posterior, **header["sharpened"])
        own = {n: t for n, t in state.items() if not n.startswith(persistence.PRIOR)}
        sharpened.load_state_dict(own)
        return sharpened

    def __repr__(self) -> str:
        return (
            f"Sharpened({self.posterior!r}, loss_scale={self.loss_scale:.3g}, sigma0={self.sigma0:.3g}, "
            f"exact={self.exact})"
        )

    @property
    def _eta_unit(self) -> float:
        return self.sigma0**2 / self.loss_scale

    def _gradient(self, closure: Callable[[], Any], leaves: Sequence[Tensor]) -> Tensor:
        """g_phi, at the weights that the model holds. Ordinary parameters collect no gradient from this."""
        with torch.enable_grad():
            loss = loss_of(closure())
            if not loss.requires_grad:
                raise ValueError(
                    "the closure's loss has no gradient; do not detach it or use no_grad()."
                )
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        g_phi = self.posterior.weights.flatten(grads)
        if g_phi is None:
            raise ValueError("the closure's loss does not depend on any Bayesian weight.")
        return self.posterior.layout.fill_fixed(g_phi)

    def _sharpen(
        self, phi: Tensor, g_phi: Tensor, eta_unit: float, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """From phi to theta, and KL_theta."""
        with torch.inference_mode(False):
            theta = torch.empty_like(phi)
        key = noise.new_key(generator, phi.device)
        settings = {"eta_unit": eta_unit, "sigma0": self.sigma0}
        kl = passes.sharpen_(theta, phi, g_phi, self.kappa, key=key, **settings)
        for span in self.posterior.layout.fixed:
            theta[span] = phi[span]
        return theta, kl

    def _hessian_product(
        self, closure: Callable[[], Any], phi: Tensor, u: Tensor, rng: Tensor
    ) -> Tensor:
        """H u at phi by double backward; adds to the gradients of the ordinary parameters too."""
        weights = self.posterior.weights
        leaves, ordinary = weights.leaves(phi), list(weights.ordinary_parameters())
        directions = [part.to(weights.dtype) for part in weights.named(u).values()]
        # The same dropout masks as in the first pass; and cuDNN's RNNs have no double backward.
        with (
            weights.holding(leaves),
            _replayed_rng(rng, u.device),
            torch.backends.cudnn.flags(enabled=False),
        ):
            loss = loss_of(closure())
            grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
            pairs = [
                (grad, direction)
                for grad, direction in zip(grads, directions, strict=True)
                if grad is not None and grad.requires_grad
            ]
            if not pairs:  # the loss is linear in every weight
                return torch.zeros_like(u)
            products = torch.autograd.grad(
                [grad for grad, _ in pairs],
                [*leaves, *ordinary],
                [direction for _, direction in pairs],
                allow_unused=True,
            )
        for parameter, product in zip(ordinary, products[len(leaves) :], strict=True):
            if product is not None:
                add_grads({parameter: product})
        product = weights.flatten(products[: len(leaves)])
        return torch.zeros_like(u) if product is None else product


@contextmanager
def _replayed_rng(state: Tensor, device: torch.device) -> Iterator[None]:
    """Run with an earlier state of the global random generator, then put the present one back."""
    present = rng_state(device)
    set_rng_state(device, state)
    try:
        yield
    finally:
        set_rng_state(device, present)
