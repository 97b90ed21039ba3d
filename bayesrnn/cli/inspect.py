"""`bayesrnn inspect`: a summary of a saved posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from bayesrnn.cli.console import one_line, show_json
from bayesrnn.cli.launch import OnDevice

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Inspect(OnDevice):
    """Summarise a posterior: its prior, and the size, noise and signal of each weight tensor."""

    posterior: Positional[Path]
    """Run folder of any experiment with method bbb or sharpened, a file of Posterior.save or Sharpened.save,
    or pretrained."""
    json: Annotated[bool, "print JSON"] = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        summary = _summary(self.posterior)
        if self.json:
            show_json(summary)
        else:
            _print_table(summary)


def _open(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Any], Path]:
    """The tensors and the header of a posterior, from a run folder or a file, and the file."""
    from bayesrnn.cli.compare import finished
    from bayesrnn.compact import read_with_header
    from bayesrnn.storage import load_tensors
    from bayesrnn.tasks.language.trained import model_file
    from bayesrnn.training.binding import check_binding
    from bayesrnn.training.experiment import open_run

    if not path.is_dir():
        path = model_file(path)
        tensors, header = load_tensors(path)
        if isinstance(header.get("posterior"), dict):  # an exported one, stored in fewer bytes
            tensors, whole = read_with_header(path)
            header = whole["posterior"]
        if "select" not in header:
            raise ValueError(
                f"{path} has no posterior; give a file of Posterior.save, or the folder of a run."
            )
        return tensors, header, path
    run = open_run(path)
    finished([run])
    tensors, header = load_tensors(run.weights)
    check_binding(header, run.weights, run.config)
    if "select" not in header:
        raise ValueError(
            f"{path} is a run of method {run.config.method}, which has no posterior; "
            "use one of method bbb or sharpened."
        )
    return tensors, header, run.weights


def _summary(given: Path) -> dict:
    import torch

    from bayesrnn.persistence import SCHEMA
    from bayesrnn.storage import check_header
    from bayesrnn.variational.gaussian import sigma_from_rho, signal_to_noise

    tensors, header, path = _open(given)
    check_header(header, SCHEMA, str(path))
    rows = []
    for name in header["select"]:
        mu, rho = (_weights(f"{kind}.{name}", tensors, path) for kind in ("mu", "rho"))
        if mu.shape != rho.shape:
            raise ValueError(f"{path}: mu and rho of {name!r} differ in shape; it is no posterior.")
        sigma = sigma_from_rho(rho)
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
        "prior": header["prior"] or header.get("prior_type", "unknown"),
        "sharpened": header.get("sharpened"),
        "weights": sum(row["weights"] for row in rows),
        "tensors": rows,
    }


def _weights(name: str, tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """One tensor of a posterior; ValueError unless it has some real numbers."""
    found = tensors.get(name)
    if found is None or not found.is_floating_point() or not found.numel():
        raise ValueError(f"{path} has no weights {name!r}, which its header names; it is damaged.")
    return found.float()


def _print_table(summary: dict) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(f"prior      {one_line(_described(summary['prior']))}"))
    if summary["sharpened"]:
        console.print(Text(f"sharpened  {one_line(_described(summary['sharpened']))}"))
    table = Table(box=None, header_style="bold")
    table.add_column("weights", overflow="fold")
    table.add_column("shape")
    for heading in ["mean rms", "sigma", "snr", "snr < 1"]:
        table.add_column(heading, justify="right")
    for row in summary["tensors"]:
        table.add_row(
            Text(one_line(row["name"])),
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


def _described(settings: Any) -> str:
    if not isinstance(settings, dict):
        return str(settings)
    values = ", ".join(f"{k}={v}" for k, v in settings.items() if k != "name")
    return f"{settings['name']}({values})" if "name" in settings else values
