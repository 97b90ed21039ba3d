"""Sharpening on a trained run: the terms of its upper bound, and the variance of its gradient.

    python benchmarks/sharpening.py RUN [--sigma0 0.01 0.02 0.04] [--streams 20] [--minibatches 12]

With G the gradient of a minibatch's total nats at phi, in nats per word of the validation text:

    gain    how much the step phi - sigma0^2 G (kappa = 1) lowers the minibatch's nats
    KL      what the step costs, sigma0^2 |G|^2 / 2
    noise   how much sigma0 eps0 raises the nats, at the step's end

The bound is lower than the nats at phi by gain - KL - noise. The second table has, over draws for the same
minibatch, the variance of the gradient at theta relative to that at phi, summed over the weights, without
noise in theta (step) and with it (step, noise); and the length of the step relative to that of SGD with a
learning rate of 1.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesrnn.kernels.noise import new_key, normal_
from bayesrnn.posterior import Posterior
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.evaluation.scoring import Segment, segments
from bayesrnn.tasks.language.trained import open_folder


@dataclass
class Parts:
    """The terms of the bound, in nats per word."""

    at_phi: float = 0.0
    gain: float = 0.0
    kl: float = 0.0
    noise: float = 0.0

    @property
    def won(self) -> float:
        return self.gain - self.kl - self.noise


@dataclass
class Probe:
    """A posterior and the minibatches to measure it on."""

    posterior: Posterior
    minibatches: list[Segment]

    def nats(self, minibatch: Segment, theta: Tensor, state: Any) -> float:
        """The minibatch's total nats at these weights."""
        weights = self.posterior.weights
        with torch.no_grad(), weights.holding(weights.leaves(theta)):
            return self._total(minibatch, state)[0].item()

    def gradient(self, minibatch: Segment, theta: Tensor, state: Any) -> tuple[Tensor, float, Any]:
        """G at these weights, the nats and the new state."""
        weights = self.posterior.weights
        leaves = weights.leaves(theta)
        with weights.holding(leaves):
            total, after = self._total(minibatch, state)
        gradient = weights.flatten(torch.autograd.grad(total, leaves))
        assert gradient is not None
        return gradient, total.item(), tuple(s.detach() for s in after)

    def _total(self, minibatch: Segment, state: Any) -> tuple[Tensor, Any]:
        logits, after = self.posterior.model(minibatch.x, state)
        nats = F.cross_entropy(logits.flatten(0, 1), minibatch.y.flatten(), reduction="none")
        return nats[minibatch.counted.flatten()].sum(), after

    def noise(self, generator: Generator) -> Tensor:
        eps = torch.empty_like(self.posterior.mu.detach())
        return normal_(eps, new_key(generator, eps.device))

    def phi(self, sampled: bool, generator: Generator) -> Tensor:
        mu = self.posterior.mu.detach()
        if not sampled:
            return mu.clone()
        return mu + self.posterior.sigma * self.noise(generator)

    def bound(self, sigma0: float, *, sampled: bool) -> Parts:
        generator, parts, state = torch.Generator().manual_seed(0), Parts(), None
        words = sum(int(minibatch.counted.sum()) for minibatch in self.minibatches)
        for minibatch in self.minibatches:
            phi = self.phi(sampled, generator)
            g, before, after = self.gradient(minibatch, phi, state)
            step = g.mul_(sigma0**2)
            noise = sigma0 * self.noise(generator)
            stepped = self.nats(minibatch, phi - step, state)
            noisy = self.nats(minibatch, phi - step + noise, state)
            kl = step.square().sum(dtype=torch.float64).item() / (2 * sigma0**2)
            parts.at_phi += before / words
            parts.gain += (before - stepped) / words
            parts.kl += kl / words
            parts.noise += (noisy - stepped) / words
            state = after
        return parts

    def spread(self, sigma0: float, draws: int) -> tuple[float, float, float]:
        """The variances at theta, without and with eps0, relative to that at phi; and the relative step."""
        minibatch, generator = self.minibatches[0], torch.Generator().manual_seed(0)
        kinds: tuple[list[Tensor], ...] = [], [], []
        for _ in range(draws):
            phi = self.phi(True, generator)
            g = self.gradient(minibatch, phi, None)[0]
            centre = phi - sigma0**2 * g
            noise = sigma0 * self.noise(generator)
            kinds[0].append(g)
            kinds[1].append(self.gradient(minibatch, centre, None)[0])
            kinds[2].append(self.gradient(minibatch, centre + noise, None)[0])
        at_phi, stepped, noisy = (_variance(gradients) for gradients in kinds)
        streams = minibatch.x.shape[1]
        return stepped / at_phi, noisy / at_phi, sigma0**2 * streams


def _variance(gradients: list[Tensor]) -> float:
    mean = sum(gradients[1:], gradients[0]) / len(gradients)
    squares = [(g - mean).square().sum(dtype=torch.float64).item() for g in gradients]
    return sum(squares) / (len(gradients) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a folder of `bayesrnn train`, bbb or sharpened")
    parser.add_argument("--sigma0", type=float, nargs="+", default=[0.01, 0.02, 0.04])
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--minibatches", type=int, default=12)
    parser.add_argument("--draws", type=int, default=8, help="for the spread of the gradient")
    options = parser.parse_args()
    try:
        run = open_folder(options.run)
        method = run.method
    except ValueError as error:
        parser.error(str(error))
    if method.posterior is None:
        parser.error(f"{options.run} is a run of {run.config.method}; give one of bbb or sharpened")
    tokens = run.tokens("valid")
    every = segments(tokens, streams=options.streams, steps=run.config.unroll)
    method.model.eval()
    probe = Probe(method.posterior, list(islice(every, options.minibatches)))

    rows = []
    for sampled in (False, True):
        for sigma0 in options.sigma0:
            parts = probe.bound(sigma0, sampled=sampled)
            numbers = [f"{getattr(parts, field.name):.4f}" for field in fields(Parts)]
            phi = "sample" if sampled else "mean"
            rows.append([phi, f"{sigma0:g}", *numbers, f"{parts.won:+.4f}"])
    print(markdown_table(["phi", "sigma0", "nats at phi", "gain", "KL", "noise", "won"], rows))
    print()
    rows = []
    for sigma0 in options.sigma0:
        step, noisy, length = probe.spread(sigma0, options.draws)
        rows.append([f"{sigma0:g}", f"{step:.3f}", f"{noisy:.3f}", f"1/{1 / length:.0f}"])
    print(markdown_table(["sigma0", "variance, step", "step, noise", "length of step"], rows))


if __name__ == "__main__":
    main()
