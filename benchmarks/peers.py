"""A training step of the small language model in other libraries, relative to the dropout LSTM.

    make peers          makes an environment of its own with benchmarks/peers.txt, and runs this

Two LSTM layers of 200 units, batch 20, unroll 35, 10,000 words, Bayesian throughout; each library as its
documentation shows it. Each round takes one step of each; times are medians over rounds. bayesian-torch draws
new LSTM weights at every time step, and is timed as it is. IVON is an optimiser: a normal posterior with a
normal prior, whose sigma comes from a running estimate of the Hessian; it does not clip the gradient's norm.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from bayesian_torch.layers import LinearReparameterization, LSTMReparameterization
from blitz.modules import BayesianEmbedding, BayesianLinear, BayesianLSTM
from blitz.utils import variational_estimator
from ivon import IVON
from torch import Tensor, nn
from torch.distributions import MixtureSameFamily, Normal
from torch.func import functional_call
from torch.nn import functional as F
from training_step import BATCH, UNROLL, VOCABULARY, contender

from bayesrnn.memory import keep_memory
from bayesrnn.report.table import markdown_table
from bayesrnn.tasks.language.models.word_lm import WordLM, nats_per_stream

HIDDEN, KL_WEIGHT = 200, 4e-5


@variational_estimator
class BlitzLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = BayesianEmbedding(VOCABULARY, HIDDEN)
        self.lstms = nn.ModuleList(BayesianLSTM(HIDDEN, HIDDEN) for _ in range(2))
        self.out = BayesianLinear(HIDDEN, VOCABULARY)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        output = self.embedding(x).transpose(0, 1)  # batch first
        for lstm in self.lstms:
            output, _ = lstm(output)
        nats = nats_per_stream(self.out(output).transpose(0, 1), y)
        return nats + KL_WEIGHT * self.nn_kl_divergence()


class BayesianTorchLM(nn.Module):
    """bayesian-torch has no Bayesian embedding, so the embedding is an ordinary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.lstms = nn.ModuleList(LSTMReparameterization(HIDDEN, HIDDEN) for _ in range(2))
        self.out = LinearReparameterization(HIDDEN, VOCABULARY)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        output, kl = self.embedding(x).transpose(0, 1), 0.0
        for lstm in self.lstms:
            output, _, own = lstm(output)
            kl = kl + own
        logits, own = self.out(output)
        return nats_per_stream(logits.transpose(0, 1), y) + KL_WEIGHT * (kl + own)


class ByHand(nn.Module):
    """Bayes by Backprop without a library: torch.distributions and functional_call."""

    def __init__(self) -> None:
        super().__init__()
        self.model = WordLM(VOCABULARY, HIDDEN)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.mu = nn.ParameterList(p.detach().clone() for p in self.model.parameters())
        self.rho = nn.ParameterList(torch.full_like(p, -3.0) for p in self.model.parameters())
        self.prior = MixtureSameFamily(
            torch.distributions.Categorical(torch.tensor([0.75, 0.25])),
            Normal(torch.zeros(2), torch.tensor([math.exp(-1), math.exp(-6)])),
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights, kl = {}, torch.zeros(())
        for name, mu, rho in zip(self.names, self.mu, self.rho, strict=True):
            q = Normal(mu, F.softplus(rho))
            weights[name] = theta = q.rsample()
            kl = kl + (q.log_prob(theta) - self.prior.log_prob(theta)).sum()
        logits, _ = functional_call(self.model, weights, (x,))
        return nats_per_stream(logits, y) + KL_WEIGHT * kl


def ivon_stepper(model: nn.Module) -> Callable[[Tensor, Tensor], float]:
    optimizer = IVON(model.parameters(), lr=0.1, ess=1 / KL_WEIGHT)

    def step(x: Tensor, y: Tensor) -> float:
        start = time.perf_counter()
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            logits, _ = model(x)
            nats_per_stream(logits, y).backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def stepper(model: nn.Module) -> Callable[[Tensor, Tensor], float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        model.loss(x, y).backward()  # type: ignore[operator]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return time.perf_counter() - start

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=15, help="rounds measured")
    options = parser.parse_args()
    keep_memory()
    contenders = {
        "dropout LSTM": contender("dropout", HIDDEN).step,
        "bayesrnn, bbb": contender("bbb", HIDDEN).step,
        "bayesrnn, sharpened": contender("sharpened", HIDDEN).step,
        "by hand": stepper(ByHand()),
        "BLITZ": stepper(BlitzLM()),
        "bayesian-torch": stepper(BayesianTorchLM()),
        "IVON": ivon_stepper(WordLM(VOCABULARY, HIDDEN)),
    }
    x, y = torch.randint(0, VOCABULARY, (2, UNROLL, BATCH))
    for step in contenders.values():
        for _ in range(3):
            step(x, y)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.steps):
        for name, step in contenders.items():
            seconds[name].append(step(x, y))
    rows = []
    for name, own in seconds.items():
        ratios = [b / o for b, o in zip(seconds["dropout LSTM"], own, strict=True)]
        rows.append(
            [name, f"{1e3 * statistics.median(own):.0f}", f"{statistics.median(ratios):.2f}x"]
        )
    print(markdown_table(["small language model", "ms a step", "speed"], rows))


if __name__ == "__main__":
    main()
