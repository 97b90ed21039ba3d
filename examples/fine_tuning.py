"""Fine-tune a trained network on a few examples, with a prior around its weights or around zero.

    python examples/fine_tuning.py

A network that reads digits is fine-tuned on a few rotated, dimmed or blurred ones. `Centred(trained, sigma)`
keeps it near what it has learnt; a prior around zero, such as `Normal(0.1)`, pulls it away from that. Every
method chooses its settings by the NLL of a few more of these digits, and is then measured on others.
Requires `pip install "bayesrnn[digits]"`. Nothing is downloaded.
"""

import argparse
import copy
import math

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrnn

TRAIN, FEW, TEST = slice(900), slice(900, 1397), slice(1397, None)
# Every method chooses the number of epochs and one more number: its learning rate or its prior's sigma.
EPOCHS, LRS, SIGMAS = [3, 10, 30], [0.001, 0.003, 0.01], [0.1, 0.3, 1.0]
BAYESIAN_LR = 0.01

Learner = tuple[nn.Module, bayesrnn.Posterior | None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="networks, each with its own few")
    parser.add_argument("--examples", type=int, default=60, help="digits to fine-tune on")
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(images).float()[order] / 16, torch.from_numpy(labels)[order]
    shifts = {"rotated": rotate(x, degrees=20), "dimmed": 0.3 * x, "blurred": blur(x)}

    results: dict[str, list] = {}
    for seed in track(range(options.seeds), description="seeds"):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
        [(trained, _)] = train((network, None), x[TRAIN], y[TRAIN], 0.003, [30])
        weights = trained.state_dict()
        methods = {
            "not fine-tuned": [],
            "plain": [(None, lr) for lr in LRS],
            "Normal(0.1)": [(bayesrnn.Normal(0.1), BAYESIAN_LR)],
            "Normal(sigma)": [(bayesrnn.Normal(s), BAYESIAN_LR) for s in SIGMAS],
            "Centred(trained, sigma)": [
                (bayesrnn.Centred(weights, s), BAYESIAN_LR) for s in SIGMAS
            ],
        }
        chosen = FEW.start + torch.randperm(FEW.stop - FEW.start)
        few, more, _ = chosen.tensor_split([options.examples, options.examples * 3 // 2])
        for method, settings in methods.items():
            scores = []
            for shifted in shifts.values():
                tried = []
                for prior, lr in settings:
                    model = copy.deepcopy(trained)
                    posterior = bayesrnn.Posterior(model, prior) if prior else None
                    tried += train((model, posterior), shifted[few], y[few], lr, EPOCHS)
                nlls = [score(learner, shifted[more], y[more])[0] for learner in tried]
                best = tried[nlls.index(min(nlls))] if tried else (trained, None)
                scores.append([score(best, data[TEST], y[TEST]) for data in (shifted, x)])
            results.setdefault(method, []).append(scores)

    console = Console(width=100)
    about = f"of held-out digits, {options.examples} examples, {options.seeds} seeds, mean ± sd"
    for index, measure in enumerate(["NLL in nats", "accuracy"]):
        table = Table("", *shifts, "unchanged digits", box=None)
        for method, scores in results.items():
            values = torch.tensor(scores)[..., index]  # (seeds, shifts, [shifted, unchanged])
            columns = [*values[:, :, 0].T, values[:, :, 1].mean(1)]
            table.add_row(method, *(spread(column) for column in columns))
        console.print(f"\n{measure} {about}", table, sep="\n", highlight=False)


def train(learner: Learner, x: Tensor, y: Tensor, lr: float, epochs: list[int]) -> list[Learner]:
    """Returns a copy of the learner after each number of epochs."""
    model, posterior = learner
    minibatches = bayesrnn.Minibatches(x, y, batch_size=20)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    copies = []
    for epoch in range(1, epochs[-1] + 1):
        for x, y in minibatches:
            optimizer.zero_grad()
            if posterior is None:
                F.cross_entropy(model(x), y).backward()
            else:
                with posterior.sample() as draw:
                    F.cross_entropy(model(x), y).backward()
                posterior.accumulate_grad(draw, kl_weight=minibatches.kl_weight("mean"))
            optimizer.step()
        if epoch in epochs:
            copies.append(copy.deepcopy(learner))
    return copies


@torch.no_grad()
def score(learner: Learner, x: Tensor, y: Tensor) -> tuple[float, float]:
    """NLL and accuracy."""
    model, posterior = learner
    if posterior is None:
        log_probs = model(x).log_softmax(-1)
    else:
        log_probs = bayesrnn.predict(posterior, x, samples=20).log_probs
    return F.nll_loss(log_probs, y).item(), (log_probs.argmax(-1) == y).float().mean().item()


def rotate(x: Tensor, degrees: float) -> Tensor:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(turn, [len(x), 1, 8, 8], align_corners=False)
    return F.grid_sample(x.view(-1, 1, 8, 8), grid, align_corners=False).flatten(1)


def blur(x: Tensor) -> Tensor:
    return F.avg_pool2d(x.view(-1, 1, 8, 8), 3, stride=1, padding=1).flatten(1)


def spread(values: Tensor) -> str:
    return f"{values.mean():.3f} ± {values.std(correction=min(1, len(values) - 1)):.3f}"


if __name__ == "__main__":
    main()
