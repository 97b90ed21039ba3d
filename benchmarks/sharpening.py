"""What the bound of a sharpened posterior is made of, in nats a word, on a trained run.

    python benchmarks/sharpening.py RUN [--sigma0 0.01 0.02 0.04] [--streams 20] [--segments 30]

For each minibatch of the validation text, with G the gradient of its total nats at phi:

    gain    how much the step phi - sigma0^2 G (kappa = 1) lowers its nats
    KL      what the step costs, sigma0^2 |G|^2 / 2
    noise   how much sigma0 eps0 raises its nats, at the step's end

The bound is below the nats at phi by gain - KL - noise. phi is the mean, and a sample of q(phi).
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrnn.data.corpus import cache_folder, load_split
from bayesrnn.data.sources import find_source
from bayesrnn.evaluation.scoring import Segment, segments
from bayesrnn.methods import PosteriorLearner
from bayesrnn.posterior import Posterior
from bayesrnn.report.table import markdown_table
from bayesrnn.training.run import Run


@dataclass
class Parts:
    """Total nats over all minibatches."""

    before: float = 0.0
    gain: float = 0.0
    kl: float = 0.0
    noise: float = 0.0

    @property
    def won(self) -> float:
        return self.gain - self.kl - self.noise


def measure(
    posterior: Posterior, stretches: list[Segment], sigma0: float, *, sampled: bool
) -> Parts:
    model, parts, state = posterior.model, Parts(), None
    model.eval()
    generator = torch.Generator().manual_seed(0)

    def nats(segment: Segment) -> tuple[Tensor, Any]:
        logits, after = model(segment.x, state)
        each = F.cross_entropy(logits.flatten(0, 1), segment.y.flatten(), reduction="none")
        return each[segment.counted.flatten()].sum(), after

    def place(theta: Tensor) -> AbstractContextManager[None]:
        return posterior.place(theta)

    for segment in stretches:
        phi = posterior.current_mu().clone()
        if sampled:
            phi += posterior.sigma() * posterior.noise(generator=generator)
        with place(phi):
            before, after = nats(segment)
            grads = torch.autograd.grad(before, posterior.weights.parameters)
        step = posterior.weights.flatten(grads).mul_(sigma0**2)
        kl = step.square().sum(dtype=torch.float64).item() / (2 * sigma0**2)
        with torch.no_grad():
            with place(phi - step):
                stepped = nats(segment)[0].item()
            eps0 = posterior.noise(generator=generator)
            with place(phi - step + sigma0 * eps0):
                noisy = nats(segment)[0].item()
        state = tuple(s.detach() for s in after)
        parts.before += before.item()
        parts.gain += before.item() - stepped
        parts.kl += kl
        parts.noise += noisy - stepped
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a folder of `bayesrnn train`, bbb or sharpened")
    parser.add_argument("--sigma0", type=float, nargs="+", default=[0.01, 0.02, 0.04])
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--segments", type=int, default=30, help="minibatches of 35 steps")
    options = parser.parse_args()
    run = Run.open(options.run)
    learner = run.load_learner()
    assert isinstance(learner, PosteriorLearner), "a run of bbb or sharpened"
    tokens = load_split(
        find_source(run.config.data, cache_folder()), "valid", run.vocabulary, cache_folder()
    )
    every = segments(tokens, streams=options.streams, steps=run.config.unroll)
    stretches = list(islice(every, options.segments))
    words = sum(int(segment.counted.sum()) for segment in stretches)
    rows = []
    for sampled in (False, True):
        for sigma0 in options.sigma0:
            parts = measure(learner.posterior, stretches, sigma0, sampled=sampled)
            each = [getattr(parts, field.name) / words for field in fields(Parts)]
            phi = "sample" if sampled else "mean"
            won = parts.won / words
            rows.append([phi, f"{sigma0:g}", *(f"{x:.4f}" for x in each), f"{won:+.4f}"])
    print(markdown_table(["phi", "sigma0", "nats at phi", "gain", "KL", "noise", "won"], rows))


if __name__ == "__main__":
    main()
