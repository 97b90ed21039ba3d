"""Forecasts 48 hours ahead with bands that cover what they say.

    python examples/forecast.py

The series is made here: an hourly demand with a daily and a weekly rhythm and noise that lasts for hours.
An LSTM reads the value and the time and predicts the next value as a normal distribution.
`bayesrnn.forecast` feeds every path its own values; feeding the predicted mean back instead shows what goes
wrong without it. Conformal bands are calibrated on stretches of their own.
"""

import argparse
import math

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import bayesrnn

TRAIN, VALID, TEST = 16_000, 76_000, 76_000  # hours
HISTORY, AHEAD, BETWEEN = 48, 48, 25  # hours of a stretch, and from one to the next
NOISE, LASTING = 0.2, 0.8  # the sd of an hour's shock, and how much of it is left an hour later
SHOWN = (1, 12, 48)  # hours ahead


class Forecaster(nn.Module):
    """Value and time of each hour (T, N, 5) -> mean and variance of the next value, (T, N, 1)."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, hidden), nn.Linear(hidden, 2)

    def forward(self, x: Tensor, state=None):
        output, state = self.lstm(x, state)
        mean, log_variance = self.out(output).split(1, dim=-1)
        return mean, log_variance.clamp(-8, 8).exp(), state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=120, help="passes over the training data")
    parser.add_argument("--stretches", type=int, default=3000, help="held-out stretches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="forecast.png", help="where the picture goes")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    series = demand(TRAIN + VALID + TEST)
    posterior = train(series[:TRAIN], options.passes)
    valid, test = (
        stretches(start, options.stretches) for start in (TRAIN, TRAIN + VALID)
    )  # when each stretch begins
    calibration, ahead = (forecast(posterior, series, starts) for starts in (valid, test))
    truth = later(series, test)
    bands = {
        "fed its mean": fed_its_mean(posterior, series, test).interval(0.9),
        "own paths": ahead.interval(0.9),
        "conformal": bayesrnn.calibrate(
            calibration, later(series, valid), coverage=0.9, axis=0
        ).interval(ahead),
    }
    table = Table(
        "90% bands", *(f"{step} h ahead" for step in SHOWN), title="share of values inside"
    )
    for name, (low, high) in bands.items():
        inside = ((truth >= low) & (truth <= high)).float().mean((1, 2))
        table.add_row(name, *(f"{inside[step - 1]:.1%}" for step in SHOWN))
    Console().print(table)
    plot(series, test[0], ahead, bands, options.out)
    print(f"wrote {options.out}")


def demand(hours: int) -> Tensor:
    time = torch.arange(hours)
    day, week = time * 2 * math.pi / 24, time * 2 * math.pi / 168
    rhythm = torch.sin(day) + 0.4 * torch.cos(2 * day) + 0.5 * torch.sin(week)
    lasting, left = torch.empty(hours), 0.0
    for hour, shock in enumerate((NOISE * torch.randn(hours)).tolist()):
        left = LASTING * left + shock
        lasting[hour] = left
    return rhythm + lasting


def with_time(values: Tensor, hours: Tensor) -> Tensor:
    """Values (...) and the hours they belong to -> the model's input (..., 5)."""
    day, week = hours * 2 * math.pi / 24, hours * 2 * math.pi / 168
    return torch.stack([values, day.sin(), day.cos(), week.sin(), week.cos()], dim=-1)


def train(series: Tensor, passes: int) -> bayesrnn.Posterior:
    model = Forecaster()
    posterior = bayesrnn.Posterior(model, bayesrnn.EmpiricalNormal(), sigma_init=0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, passes)
    inputs = with_time(series, torch.arange(len(series)))[:-1]
    cuts = bayesrnn.Cuts(inputs, targets=series[1:, None], num_streams=20, unroll=100)
    for _ in track(range(passes), description="training"):
        for x, y in cuts:
            optimizer.zero_grad()
            with posterior.sample() as draw:
                mean, variance, cuts.state = model(x, cuts.state)
                nn.functional.gaussian_nll_loss(mean, y, variance, full=True).backward()
            posterior.accumulate_grad(draw, kl_weight=cuts.kl_weight("mean"))
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        schedule.step()
    return posterior


def stretches(start: int, number: int) -> Tensor:
    return start + BETWEEN * torch.arange(number)


def earlier(series: Tensor, starts: Tensor) -> Tensor:
    """The history of each stretch as the model's input, (48, N, 5)."""
    hours = starts + torch.arange(HISTORY)[:, None]
    return with_time(series[hours], hours)


def later(series: Tensor, starts: Tensor) -> Tensor:
    """What came after it, (48, N, 1)."""
    return series[starts + HISTORY + torch.arange(AHEAD)[:, None]][..., None]


def forecast(posterior: bayesrnn.Posterior, series: Tensor, starts: Tensor) -> bayesrnn.Forecast:
    return bayesrnn.forecast(
        posterior,
        earlier(series, starts),
        AHEAD,
        samples=50,
        next_input=lambda value, step: with_time(value[:, 0], starts + HISTORY + step),
    )


@torch.no_grad()
def fed_its_mean(posterior: bayesrnn.Posterior, series: Tensor, starts: Tensor) -> bayesrnn.Values:
    """What not to do: the mean over weights is fed back as if it had been observed."""
    found = []
    values = bayesrnn.predict_values(posterior, earlier(series, starts), samples=20)
    for step in range(AHEAD):
        found.append(bayesrnn.Values(values.means[:, -1:], values.variances[:, -1:]))
        x = with_time(values.mean[-1, :, 0], starts + HISTORY + step)[None]
        values = bayesrnn.predict_values(posterior, x, samples=20, states=values.states)
    means, variances = zip(*((v.means, v.variances) for v in found), strict=True)
    return bayesrnn.Values(torch.cat(means, dim=1), torch.cat(variances, dim=1))


def plot(series: Tensor, start: Tensor, ahead, bands, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = int(start) + HISTORY
    past, future = torch.arange(-48, 0), torch.arange(AHEAD)
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for name, shade in [("own paths", "0.8"), ("fed its mean", "0.55")]:
        low, high = (band[:, 0, 0] for band in bands[name])
        axes.fill_between(future, low, high, color=shade, label=f"90% band, {name}")
    axes.plot(future, ahead.mean[:, 0, 0], color="C0", label="mean")
    axes.plot(past, series[first + past], "k.-", markersize=3, linewidth=0.6, label="history")
    axes.plot(future, series[first + future], "kx", markersize=4, label="what came")
    axes.axvline(-0.5, color="0.3", linestyle=":", linewidth=1)
    axes.set(xlabel="time (hours)", ylabel="demand (arbitrary units)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
