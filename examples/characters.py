"""A Bayesian character-level language model and a plain LSTM of the same size: which one overfits?

    python examples/characters.py

The text is Python's reference manual, which comes with every CPython.
"""

import argparse
import copy
import math

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import bayesrnn


class CharacterModel(nn.Module):
    def __init__(self, characters: int, hidden: int = 160) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, hidden)
        self.out = nn.Linear(hidden, characters)

    def forward(self, x: Tensor, state=None):
        output, state = self.lstm(self.embedding(x), state)
        return self.out(output), state

    def nats(self, x: Tensor, y: Tensor, state=None):
        logits, state = self(x, state)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), y.flatten(), reduction="sum"
        ), state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=40, help="passes over the training text")
    parser.add_argument("--size", type=int, default=80_000, help="number of characters to train on")
    options = parser.parse_args()
    torch.manual_seed(0)
    train, held_out, alphabet = prose(options.size)
    cuts = bayesrnn.Cuts(train, num_streams=20, unroll=50)
    plain = CharacterModel(len(alphabet))
    model = copy.deepcopy(plain)
    posterior = bayesrnn.Posterior(
        model, bayesrnn.ScaleMixture(0.25, 1.0, math.exp(-6)), sigma_init=0.01
    )
    learners = {
        "plain LSTM": (plain, None, torch.optim.Adam(plain.parameters(), lr=4e-3)),
        "Bayesian LSTM": (model, posterior, torch.optim.Adam(model.parameters(), lr=4e-3)),
    }

    table = Table("", "training text", "held-out text, best", "held-out text, at the end", box=None)
    with Progress(
        TextColumn("{task.description:32}"), BarColumn(), TimeRemainingColumn()
    ) as progress:
        for name, (network, q, optimizer) in learners.items():
            task = progress.add_task(name, total=options.passes * len(cuts))
            scores = []
            for _ in range(options.passes):
                for x, y in cuts:
                    step(network, q, optimizer, cuts, x, y)
                    progress.advance(task)
                scores.append(bits(network, held_out))
                progress.update(task, description=f"{name}: {scores[-1]:.3f} bits")
            on_train = bits(network, train[: len(held_out)])
            table.add_row(name, f"{on_train:.3f}", f"{min(scores):.3f}", f"{scores[-1]:.3f}")
    console = Console()
    console.print("\nbits per character, lower is better", table, sep="\n", highlight=False)
    console.print(
        f"\nThe Bayesian model's {posterior.layout.size:,} weights hold "
        f"{posterior.description_length() / 8 / 1024:.0f} kB of information "
        f"({posterior.layout.size * 4 / 1024:.0f} kB as stored); "
        f"{(posterior.snr() < 1).float().mean():.0%} of them have |mu| < sigma.",
        highlight=False,
    )


def step(
    model: CharacterModel, posterior: bayesrnn.Posterior | None, optimizer, cuts, x, y
) -> None:
    def loss():
        nats, state = model.nats(x, y, cuts.state)
        return nats * cuts.loss_scale, state

    optimizer.zero_grad()
    if posterior is None:
        value, cuts.state = loss()
        value.backward()
    else:
        _, cuts.state = posterior.backward(loss, kl_weight=cuts.kl_weight("sum over time"))
    optimizer.step()


@torch.no_grad()
def bits(model: CharacterModel, text: Tensor) -> float:
    """Bits per character of a text, at the mean weights."""
    nats, _ = model.nats(text[:-1, None], text[1:, None])
    return nats.item() / (len(text) - 1) / math.log(2)


def prose(size: int) -> tuple[Tensor, Tensor, list[str]]:
    """Training and held-out text as tokens, and the alphabet."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    tokens = torch.tensor([number[character] for character in text])
    return tokens[:size], tokens[-20_000:], alphabet


if __name__ == "__main__":
    main()
