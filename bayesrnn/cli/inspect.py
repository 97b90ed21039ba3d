"""`bayesrnn inspect`: a summary of a saved posterior."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional


@dataclass(frozen=True)
class Inspect:
    """Summarise a saved posterior: its prior, and the size, noise and signal of each weight tensor."""

    file: Positional[Path]
    """File written by Posterior.save or Sharpened.save."""
    json: Annotated[bool, "print JSON"] = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        summary = _summary(self.file)
        if self.json:
            print(json.dumps(summary))
        else:
            _print_table(summary)


def _summary(path: Path) -> dict:
    import torch

    from bayesrnn.storage import load_tensors
    from bayesrnn.variational.gaussian import sigma_from_rho, signal_to_noise

    tensors, header = load_tensors(path)
    if "select" not in header:
        raise ValueError(f"{path} has no posterior.")
    rows = []
    for name in header["select"]:
        mu, sigma = tensors[f"mu.{name}"], sigma_from_rho(tensors[f"rho.{name}"])
        snr = signal_to_noise(mu, sigma)
        rows.append(
            {
                "name": name,
                "shape": list(mu.shape),
                "weights": mu.numel(),
                "mean_rms": mu.square().mean().sqrt().item(),
                "sigma_median": sigma.median().item(),
                "snr_median": snr.median().item(),
                "snr_below_1": (snr < 1).to(torch.float64).mean().item(),
            }
        )
    return {
        "file": str(path),
        "prior": header["prior"] or header["prior_type"],
        "sharpened": header.get("sharpened"),
        "weights": sum(row["weights"] for row in rows),
        "tensors": rows,
    }


def _print_table(summary: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"prior      {_described(summary['prior'])}", highlight=False)
    if summary["sharpened"]:
        console.print(f"sharpened  {_described(summary['sharpened'])}", highlight=False)
    table = Table(box=None, header_style="bold")
    table.add_column("weights", overflow="fold")
    table.add_column("shape")
    for heading in ["mean rms", "sigma", "snr", "snr < 1"]:
        table.add_column(heading, justify="right")
    for row in summary["tensors"]:
        table.add_row(
            row["name"],
            "x".join(map(str, row["shape"])),
            f"{row['mean_rms']:.4g}",
            f"{row['sigma_median']:.4g}",
            f"{row['snr_median']:.3g}",
            f"{row['snr_below_1']:.1%}",
        )
    console.print(table)
    console.print(
        f"{summary['weights']:,} Bayesian weights; sigma and snr = |mu|/sigma are medians",
        highlight=False,
    )


def _described(settings: dict | str) -> str:
    if isinstance(settings, str):
        return settings
    values = ", ".join(f"{k}={v}" for k, v in settings.items() if k != "name")
    return f"{settings['name']}({values})" if "name" in settings else values
