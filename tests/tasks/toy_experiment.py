"""An experiment from outside the package: fitting a line, with a goal where higher is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrnn import methods
from bayesrnn.data.minibatches import Minibatches
from bayesrnn.training.experiment import Comparison, Goal, Minibatch, Prepared, Section
from bayesrnn.training.run import Run
from bayesrnn.training.settings import Settings


@dataclass(frozen=True)
class ToyConfig(Settings):
    slope: float = 2.0
    """Slope of the line."""

    TASK: ClassVar[str] = "toy"


class ToyTask:
    item = "point"
    goal = Goal("valid_r2", higher_is_better=True)
    hopeless = 1e6
    rows = 8

    def __init__(self, config: ToyConfig) -> None:
        self.x = torch.linspace(-1, 1, 40)[:, None]
        self.y = config.slope * self.x
        self.minibatches = Minibatches(self.x, self.y, batch_size=8, seed=config.seed)
        self.size = self.items = len(self.x)

    def __len__(self) -> int:
        return len(self.minibatches)

    def begin_epoch(self, epoch):
        self.minibatches.begin(epoch)

    def step(self, method, index, part, generator):
        x, y = self.minibatches[index]
        x, y = x[part.rows(len(x))], y[part.rows(len(y))]
        weight = self.minibatches.kl_weight("mean")
        result = method.step(
            lambda: (method.model(x) - y).square().sum() / self.rows,
            kl_weight=weight * part.kl_share,
            generator=generator,
        )
        return Minibatch(result.value, len(x) / self.rows, len(x), weight, result.metrics)

    def rates(self) -> dict[str, Tensor]:
        return {}

    def carried(self):
        return {}

    def carry(self, tensors):
        pass

    def training_metrics(self, nats):
        return {"train_error": nats}

    @torch.no_grad()
    def validate(self, method):
        error = (method.model(self.x) - self.y).square().mean().item()
        return error, {"valid_r2": 1 - error / self.y.square().mean().item()}


def _method(config: Settings):
    torch.manual_seed(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    return methods.method(config.method).build(nn.Linear(1, 1), config, generator=generator)


class ToyExperiment:
    name = "toy"
    command = "toy"
    summary = "Fit a line."
    run_name = "runs/toy"
    config = ToyConfig

    def defaults(self, given):
        return ToyConfig(method=given.get("method", "bbb"), lr=0.1, batch_size=8)

    def folder_name(self, config):
        return "toy"

    def prepare(self, config, resumed: Run | None) -> Prepared:
        return Prepared(config, ToyTask(config), _method(config), {"note.txt": "a line\n"})

    def progress_text(self, metrics: dict[str, Any]) -> str:
        return f"{metrics['train_error']:.3f}"

    def epoch_line(self, metrics):
        return f"epoch {metrics['epoch']}  R2 {metrics['valid_r2']:.3f}"

    def goal_text(self, best):
        return f"R2 {best:.3f}"

    def compare(self, runs, options, progress) -> Comparison:
        rows = []
        for run in runs:
            method = run.load_weights(_method(run.config))
            rows.append({"run": run.name, "slope": method.weights()["weight"].item()})
        return Comparison(["run", "slope"], [[r["run"], f"{r['slope']:.4f}"] for r in rows], rows)

    def report(self, runs, options, progress) -> list[Section]:
        found = self.compare(runs, None, progress)
        return [Section("line", "The line", str(found.cells))]


EXPERIMENT = ToyExperiment()
