"""A Bayesian LSTM on a time series with a gap and a change of regime: uncertainty grows in the gap.

    python examples/timeseries.py

The LSTM reads a value and predicts the next as a normal distribution. Where a value is missing it
reads its own prediction instead, so that the weight samples diverge in a gap. It is trained on a
noisy wave and then tested on a new series with a gap, followed by a wave of half the frequency, which
is not in the training data.
"""

import argparse
import math

import torch
from rich.progress import track
from torch import Tensor, nn

import bayesrnn

NOISE = 0.1
STEPS = 2000  # to train on
GAP, CHANGE, SHOWN = slice(120, 170), 260, 380  # in steps of the test series


class Forecaster(nn.Module):
    """Values (T, N, 1), nan where missing -> mean and variance of each next value, (T, N)."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x: Tensor, state=None):
        if x.isnan().any():
            return self._step_by_step(x, state)
        output, state = self.lstm(x, state)
        mean, log_variance = self.out(output).unbind(-1)
        return mean, log_variance.clamp(-8, 8).exp(), state

    def _step_by_step(self, x: Tensor, state):
        means, variances, guess = [], [], torch.zeros_like(x[0])
        for value in x:
            known = torch.where(value.isnan(), guess, value)
            mean, variance, state = self(known[None], state)
            guess = mean[0, :, None]
            means.append(mean)
            variances.append(variance)
        return torch.cat(means), torch.cat(variances), state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=400, help="passes over the series")
    parser.add_argument("--out", default="timeseries.png", help="where the picture goes")
    options = parser.parse_args()
    torch.manual_seed(0)

    posterior = train(wave(STEPS)[0], options.passes)
    series, clean = wave(SHOWN, change_at=CHANGE)
    seen = series.clone()
    seen[GAP] = torch.nan
    values = bayesrnn.predict_values(posterior, seen[:, None, None], samples=100)

    # The prediction for step t is at index t - 1.
    mean = values.mean[:-1, 0]
    total, own = values.variance[:-1, 0].sqrt(), values.epistemic[:-1, 0].sqrt()
    for name, span in [
        ("before the gap", slice(40, GAP.start)),
        ("in the gap", GAP),
        ("after the gap", slice(GAP.stop + 20, CHANGE)),
        ("after the change", slice(CHANGE + 10, SHOWN)),
    ]:
        rows = slice(span.start - 1, span.stop - 1)
        inside = ((series[1:] - mean).abs() <= 2 * total)[rows].float().mean()
        print(
            f"{name:17}  sd of the weights {own[rows].mean():.3f}   "
            f"total sd {total[rows].mean():.3f}   values within 2 sd {inside:.0%}"
        )
    plot(series, clean, seen, mean, total, own, options.out)
    print(f"wrote {options.out}")


def wave(steps: int, change_at: int | None = None) -> tuple[Tensor, Tensor]:
    """A wave of drifting amplitude, with and without noise; at half the frequency after `change_at`."""
    time = torch.arange(steps, dtype=torch.float32)
    changed = torch.zeros(steps) if change_at is None else (time >= change_at).float()
    phase = (2 * math.pi / 20 * (1 - 0.5 * changed)).cumsum(0)
    clean = (1 + 0.3 * torch.sin(time / 67)) * torch.sin(phase)
    return clean + NOISE * torch.randn(steps), clean


def train(series: Tensor, passes: int) -> bayesrnn.Posterior:
    model = Forecaster()
    posterior = bayesrnn.Posterior(model, bayesrnn.EmpiricalNormal(), sigma_init=0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, passes)
    cuts = bayesrnn.Cuts(series[:-1, None], targets=series[1:], num_streams=10, unroll=50)
    for _ in track(range(passes), description="training"):
        for x, y in cuts:
            optimizer.zero_grad()
            with posterior.sample() as draw:
                mean, variance, cuts.state = model(x, cuts.state)
                nats = nn.functional.gaussian_nll_loss(
                    mean, y, variance, full=True, reduction="sum"
                )
                (nats * cuts.loss_scale).backward()
            posterior.accumulate_grad(draw, kl_weight=cuts.kl_weight("sum over time"))
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        schedule.step()
    return posterior


def plot(series, clean, seen, mean, total, own, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    time = torch.arange(1, len(series))
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    axes.fill_between(time, mean - 2 * total, mean + 2 * total, color="0.85", label="±2 sd, all")
    axes.fill_between(
        time,
        mean - 2 * own,
        mean + 2 * own,
        color="C0",
        alpha=0.45,
        label="±2 sd, from the weights",
    )
    axes.plot(time, mean, color="C0", linewidth=1.5, label="predicted one step ahead")
    axes.plot(clean, color="0.4", linewidth=0.8, linestyle=":", label="without noise")
    axes.plot(seen, "k.", markersize=3, label="seen")
    for edge in (GAP.start, GAP.stop):
        axes.axvline(edge, color="0.3", linestyle=":", linewidth=1)
    top = 1.3 * axes.get_ylim()[1]
    axes.set_ylim(top=top)
    axes.annotate("gap", ((GAP.start + GAP.stop) / 2, 0.97 * top), ha="center", va="top")
    axes.axvline(CHANGE, color="0.3", linestyle="--", linewidth=1)
    axes.annotate("  new regime", (CHANGE, 0.97 * top), va="top")
    axes.set(xlabel="time (steps)", ylabel="value (arbitrary units)", xlim=(0, len(series)))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
