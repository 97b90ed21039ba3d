"""Sharpened: posterior sharpening around any Posterior [F17, sec. 4, Alg. 1]."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesrnn.gradients import add_grad, check_closure, check_kl_weight, loss_of
from bayesrnn.posterior import Posterior
from bayesrnn.storage import copy_state, load_tensors, save_tensors
from bayesrnn.variational import passes, sharpening
from bayesrnn.variational.pieces import Pieces

T = TypeVar("T")


@dataclass(frozen=True)
class Bound(Generic[T]):
    """A minibatch scored with the posterior sharpened on that same minibatch."""

    value: T
    """What the closure returned at theta."""
    kl_theta: Tensor
    """KL[q(theta | phi, (x, y)) || p(theta | phi)] in nats; add it to the total nats for the bound."""


class Sharpened:
    """q(theta | phi, (x, y)) = N(phi - eta * g_phi, sigma0^2) around a posterior q(phi).

    eta is learnt as kappa, eta = kappa * sigma0^2 / loss_scale: kappa = 1 is the step at which
    the KL it costs and the loss it gains balance to first order, whatever the scale of the loss,
    so the same learning rate suits kappa, mu and rho.
    """

    kappa: nn.Parameter

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
        self.kappa = nn.Parameter(torch.full_like(posterior.rho, kappa_init))
        self.kl_theta = torch.zeros((), device=posterior.rho.device)
        """KL_theta of the last minibatch in nats."""

    @property
    def eta(self) -> Tensor:
        """The learnt step for every weight, a flat vector."""
        return self.kappa.detach() * self._eta_unit

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimiser trains: kappa and all that the posterior trains."""
        yield self.kappa
        yield from self.posterior.parameters()

    def backward(
        self, closure: Callable[[], T], *, kl_weight: float, generator: Generator | None = None
    ) -> T:
        """The gradients of one minibatch for (mu, rho, kappa), added to their `.grad` [F17, Alg. 1].

        `closure` computes the loss of the minibatch with the model as it stands; it is called once
        at phi and once at theta (once more at phi if exact). It must start from the same RNN state
        each time; what it returned at theta, a loss or a tuple that begins with one, is returned.
        """
        check_kl_weight(kl_weight)
        check_closure(closure)
        posterior = self.posterior
        with posterior.weights.own_grads():
            with posterior.placed_draw(generator=generator) as draw:
                rng = _rng_state(posterior.rho.device) if self.exact else None
                g_phi = self._gradient_here(closure)
                self.kl_theta = self._sharpen_here(g_phi, self._eta_unit, generator)
                value = closure()
                loss_of(value).backward()
            g_theta = posterior.weights.take_grad()
        assert g_theta is not None  # the first pass has shown that the loss reaches the weights
        settings = {"sigma0": self.sigma0, "loss_scale": self.loss_scale}
        g: Tensor | Pieces = g_theta
        if rng is not None:
            g = g_theta.joined(posterior.buffers.take())
            u = sharpening.hessian_direction(g, g_phi, self.eta, **settings)
            g += self._hessian_product(closure, draw.theta, u, rng)
        kappa, eta_unit = self.kappa.detach(), self._eta_unit
        passes.kappa_gradient_(g_phi, g_theta, kappa, eta_unit=eta_unit, **settings)
        add_grad(self.kappa, g_phi)  # which it has become
        posterior.accumulate(draw, g, kl_weight=kl_weight)
        return value

    def bound(
        self,
        closure: Callable[[], T],
        *,
        sample_phi: bool = False,
        loss_scale: float | None = None,
        generator: Generator | None = None,
    ) -> Bound[T]:
        """Score a minibatch with q(theta | phi, (x, y)), at the mean phi or at a sampled one.

        exp((nats + kl_theta) / words) is an upper bound on perplexity, since theta has seen the words.
        `loss_scale` is that of the closure's loss, where it is not the one of training. To predict
        with q(phi) instead, use the posterior itself: no bound, no KL.
        """
        posterior = self.posterior
        placed = posterior.placed_draw(generator=generator) if sample_phi else posterior.mean()
        eta_unit = self.sigma0**2 / (loss_scale or self.loss_scale)
        with placed:
            g_phi = self._gradient_here(closure)
            kl_theta = self._sharpen_here(g_phi, eta_unit, generator)
            with torch.no_grad():
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
        self.posterior.check_at_rest()
        copy_state(self.state_dict(), state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; `Posterior.load` reads it too, for q(phi) alone."""
        save_tensors(path, self.state_dict(), self.header())

    def header(self) -> dict[str, Any]:
        """The posterior's header and the settings of the sharpening."""
        settings = {"loss_scale": self.loss_scale, "sigma0": self.sigma0, "exact": self.exact}
        return {**self.posterior.header(), "sharpened": settings}

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, prior: Any = None) -> Sharpened:
        """What `save` wrote, around a fresh `model` of the same architecture."""
        state, header = load_tensors(path)
        if "sharpened" not in header:
            raise ValueError(
                f"{path} holds a posterior that was not sharpened; use Posterior.load."
            )
        posterior = Posterior.from_state(state, header, model, prior, source=str(path))
        sharpened = cls(posterior, **header["sharpened"])
        sharpened.load_state_dict(state)
        return sharpened

    @property
    def _eta_unit(self) -> float:
        return self.sigma0**2 / self.loss_scale

    def _gradient_here(self, closure: Callable[[], Any]) -> Tensor:
        """g_phi at the model's present weights. Ordinary parameters collect no gradient from this."""
        weights = self.posterior.weights
        with torch.enable_grad():
            loss = loss_of(closure())
            if not loss.requires_grad:
                raise ValueError(
                    "the closure's loss has no gradient; do not detach it or use no_grad()."
                )
            grads = torch.autograd.grad(loss, weights.parameters, allow_unused=True)
        if all(grad is None for grad in grads):
            raise ValueError("the closure's loss does not depend on any Bayesian weight.")
        g_phi = weights.flatten(grads, self.posterior.buffers.take())
        return self.posterior.zero_fixed(g_phi)

    def _sharpen_here(self, g_phi: Tensor, eta_unit: float, generator: Generator | None) -> Tensor:
        """From phi to theta, in the model; returns KL_theta."""
        posterior, kappa = self.posterior, self.kappa.detach()
        key = posterior.noise_key(generator)
        phi, theta = posterior.weights.shown, posterior.buffers.take()
        settings = {"eta_unit": eta_unit, "sigma0": self.sigma0}
        kl = passes.sharpen_(theta, phi, g_phi, kappa, key=key, **settings)
        posterior.fix(theta)
        posterior.replace(theta)
        return kl

    def _hessian_product(
        self, closure: Callable[[], Any], phi: Tensor, u: Tensor, rng: Tensor
    ) -> Tensor:
        """H u at phi by double backward; adds to the gradients of the ordinary parameters too."""
        posterior = self.posterior
        bound, rest = posterior.weights.parameters, list(posterior.weights.rest())
        # The same dropout masks as in the first pass; and cuDNN's RNNs have no double backward.
        with (
            posterior.place(phi),
            _replayed_rng(rng, u.device),
            torch.backends.cudnn.flags(enabled=False),
        ):
            loss = loss_of(closure())
            grads = torch.autograd.grad(loss, bound, create_graph=True, allow_unused=True)
            pairs = [
                (grad, direction)
                for grad, direction in zip(grads, posterior.named(u).values(), strict=True)
                if grad is not None and grad.requires_grad
            ]
            if not pairs:  # the loss is linear in every weight
                return torch.zeros_like(u)
            products = torch.autograd.grad(
                [grad for grad, _ in pairs],
                [*bound, *rest],
                [direction for _, direction in pairs],
                allow_unused=True,
            )
        for parameter, product in zip(rest, products[len(bound) :], strict=True):
            if product is not None:
                add_grad(parameter, product)
        return posterior.weights.flatten(products[: len(bound)])


def _rng_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


@contextmanager
def _replayed_rng(state: Tensor, device: torch.device) -> Iterator[None]:
    """Run with an earlier state of the global random generator, then put the present one back."""
    present = _rng_state(device)
    set_state = (
        torch.set_rng_state
        if device.type == "cpu"
        else lambda s: torch.get_device_module(device).set_rng_state(s, device)
    )
    set_state(state)
    try:
        yield
    finally:
        set_state(present)
