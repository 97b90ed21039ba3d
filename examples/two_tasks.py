"""Two tasks in turn with one network: what was learnt in the first is the prior of the second.

    python examples/two_tasks.py

Task 1 is to read handwritten digits, task 2 to read them with the pixels in another order. Plain training
on task 2 overwrites task 1. The Bayesian network knows which weights task 1 needs: their sigma is small,
and with `posterior.prior = posterior.as_prior()` they stay where they are.
Requires `pip install "bayesrnn[digits,report]"`. Nothing is downloaded.
"""

import argparse

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrnn

# The learning rates on task 1 and on task 2. Those of "plain" are a common choice. The others, and the prior,
# had the best mean accuracy on both tasks in the end, on the validation digits.
LEARNERS = {"plain": (0.001, 0.001), "plain, tuned": (0.06, 0.005), "Bayesian": (0.15, 0.15)}
PRIOR_OF_TASK_1 = bayesrnn.Normal(0.7)
TRAIN, VALIDATION, TEST = slice(1000), slice(1000, 1397), slice(1397, None)

Task = tuple[Tensor, Tensor]  # images and labels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="initial weights and permutations")
    parser.add_argument("--epochs", type=int, default=100, help="passes over each task")
    parser.add_argument("--validation", action="store_true", help="measure on validation digits")
    parser.add_argument("--out", default="two_tasks.png", help="where the picture goes")
    options = parser.parse_args()

    every = max(options.epochs // 25, 1)
    shown = sorted({options.epochs, *range(every, options.epochs, every)})  # epochs, in the picture
    runs = {name: [] for name in [*LEARNERS, "both at once"]}
    for seed in track(range(options.seeds), description="seeds"):
        tasks = two_tasks(TRAIN, seed)
        held_out = two_tasks(VALIDATION if options.validation else TEST, seed)
        for name, (lr_1, lr_2) in LEARNERS.items():
            model = network(seed)
            posterior = bayesrnn.Posterior(model, PRIOR_OF_TASK_1) if name == "Bayesian" else None
            before = train(model, posterior, tasks[0], lr_1, held_out, shown[-1:])
            if posterior is not None:
                posterior.prior = posterior.as_prior()  # from now on, remember
            during = train(model, posterior, tasks[1], lr_2, held_out, shown)
            runs[name].append(before + during)
        x, y = (torch.cat(parts) for parts in zip(*tasks, strict=True))
        scores = train(network(seed), None, (x, y), 0.003, held_out, shown[-1:])
        runs["both at once"].append(scores)

    results = {name: 100 * torch.tensor(scores) for name, scores in runs.items()}
    table = Table("", "task 1, before task 2", "task 1, after", "task 2, after", box=None)
    for name, scores in results.items():  # (seeds, epochs, tasks)
        before = spread(scores[:, 0, 0]) if name in LEARNERS else ""
        table.add_row(name, before, spread(scores[:, -1, 0]), spread(scores[:, -1, 1]))
    title = f"\naccuracy in % on held-out digits; {options.seeds} seeds, mean ± sd"
    Console().print(title, table, sep="\n", highlight=False)
    plot([0, *shown], results, options.out)
    print(f"wrote {options.out}")


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 10))


def train(
    model: nn.Module,
    posterior: bayesrnn.Posterior | None,
    task: Task,
    lr: float,
    held_out: list[Task],
    shown: list[int],
) -> list[list[float]]:
    """Train until the last epoch of `shown`; returns the accuracy on both tasks after each of these."""
    minibatches = bayesrnn.Minibatches(*task, batch_size=100)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    steps = shown[-1] * len(minibatches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps)  # up to lr, then down
    scores = []
    for epoch in range(1, shown[-1] + 1):
        for x, y in minibatches:
            optimizer.zero_grad()
            if posterior is None:
                F.cross_entropy(model(x), y).backward()
            else:
                with posterior.sample() as draw:
                    F.cross_entropy(model(x), y).backward()
                posterior.accumulate_grad(draw, kl_weight=minibatches.kl_weight("mean"))
            optimizer.step()
            schedule.step()
        if epoch in shown:
            scores.append([accuracy(model, posterior, *each) for each in held_out])
    return scores


@torch.no_grad()
def accuracy(model: nn.Module, posterior: bayesrnn.Posterior | None, x: Tensor, y: Tensor) -> float:
    scores = bayesrnn.predict(posterior, x, samples=20).probs if posterior else model(x)
    return (scores.argmax(-1) == y).float().mean().item()


def two_tasks(part: slice, seed: int) -> list[Task]:
    """The digits as they are, and with the pixels in an order that depends on the seed."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[part]
    x, y = torch.from_numpy(images).float()[order] / 16, torch.from_numpy(labels)[order]
    pixels = torch.randperm(64, generator=torch.Generator().manual_seed(100 + seed))
    return [(x, y), (x[:, pixels], y)]


def spread(values: Tensor) -> str:
    return f"{values.mean():.1f} ± {values.std(correction=min(1, len(values) - 1)):.1f}"


def plot(epochs: list[int], results: dict[str, Tensor], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = {"plain": ("0.6", ":"), "plain, tuned": ("0.3", "--"), "Bayesian": ("C0", "-")}
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for task, axes in enumerate(panels):
        for name, (color, line) in styles.items():
            scores = results[name][:, :, task]
            axes.fill_between(
                epochs, scores.amin(0), scores.amax(0), color=color, alpha=0.2, linewidth=0
            )
            axes.plot(epochs, scores.mean(0), color=color, linestyle=line, label=name)
        ceiling = results["both at once"][:, -1, task].mean()
        axes.axhline(ceiling, color="k", linewidth=0.8, label="both at once")
        axes.set(title=f"task {task + 1}", xlabel="epochs of training on task 2", ylim=(0, 102))
    panels[0].set_ylabel("accuracy on held-out digits (%)")
    panels[1].legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
