"""From the gradients of a minibatch to new weights: clipping, learning rates and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesrnn import methods
from bayesrnn.gradients import total_norm
from bayesrnn.methods import Method
from bayesrnn.training.settings import Settings

LARGEST_RHO_STEP = 0.1
"""Upper limit on a step of rho, and so of log sigma, where rho has a larger learning rate."""


class Update:
    """Steps of the optimiser over all that a method trains: `parameters`, in the order of checkpoints."""

    def __init__(self, method: Method, config: Settings, rates: Mapping[str, Tensor]) -> None:
        """`rates` are factors on the learning rate, by the name of a weight (`Task.rates`)."""
        self.method = method
        self.config = config
        self.parameters = list(method.parameters())
        self.device = self.parameters[0].device
        self.rho = rho = method.rho()
        groups = [{"params": [p for p in self.parameters if p is not rho], "scale": 1.0}]
        if rho is not None:
            groups.append({"params": [rho], "scale": config.rho_lr})
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        # Fused: one pass over each parameter instead of one per operation.
        self.optimizer = kinds[config.optimizer](groups, lr=config.lr, fused=True)
        if rates and (config.optimizer != "sgd" or methods.method(config.method).one_rate):
            raise ValueError(
                f"{config.method} with --optimizer {config.optimizer} has one learning rate for all weights."
            )
        if rates and not rates.keys() & method.weights().keys():
            raise ValueError(f"no weight is called {' or '.join(rates)}.")
        self._rates = {name: rate.to(self.device) for name, rate in rates.items()}

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def gradients(self) -> list[Tensor]:
        """The gradients there are."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def gradient_norm(self) -> Tensor:
        return total_norm(self.parameters)

    def step(self, lr: float, gradient_norm: Tensor) -> None:
        """Change the weights: gradients of this norm are clipped, then multiplied by their learning rates."""
        rest = self._clip(gradient_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * rest * group["scale"]
        self._limit_rho_step()
        self._scale_rates()
        self.optimizer.step()

    def _clip(self, gradient_norm: Tensor) -> float:
        """Clip the gradient by its norm; returns what is left to do, as a factor for the learning rate."""
        clip = self.config.clip
        if self.device.type != "cpu":  # without waiting for the norm
            factor = (clip / (gradient_norm + 1e-6)).clamp_max(1.0)
        else:
            factor = min(1.0, clip / (gradient_norm.item() + 1e-6))
            # For SGD, scaling the learning rate clips the gradient without rewriting it.
            if self.config.optimizer == "sgd" or factor == 1:
                return factor
        for gradient in self.gradients():
            gradient.mul_(factor)
        return 1.0

    def _limit_rho_step(self) -> None:
        """With a larger learning rate for rho, let no log sigma change by more than LARGEST_RHO_STEP."""
        # Adam's steps are limited by its learning rate.
        if self.rho is None or self.config.rho_lr == 1 or self.config.optimizer != "sgd":
            return
        assert self.rho.grad is not None
        limit = LARGEST_RHO_STEP / self.optimizer.param_groups[-1]["lr"]
        self.rho.grad.clamp_(-limit, limit)

    def _scale_rates(self) -> None:
        """Give weights their own learning rates: under SGD, that is to scale their gradients."""
        if self._rates:
            gradients = self.method.gradients()
            for name in self._rates.keys() & gradients.keys():  # tied weights have one of two names
                gradients[name].mul_(self._rates[name])

    def state_dict(self) -> dict[str, Tensor]:
        """The optimiser's own state, such as Adam's moments, as INDEX.NAME."""
        return {
            f"{index}.{name}": tensor
            for index, parameter in enumerate(self.parameters)
            for name, tensor in self.optimizer.state.get(parameter, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for key, tensor in state.items():
            index, _, name = key.partition(".")
            self.optimizer.state[self.parameters[int(index)]][name] = tensor.to(self.device)
