"""Bayesian recurrent neural networks, and any other nn.Module: Bayes by Backprop in three lines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesrnn import init as init
    from bayesrnn.data.cuts import Cuts as Cuts
    from bayesrnn.data.minibatches import Minibatches as Minibatches
    from bayesrnn.evaluation.abstaining import risk_coverage as risk_coverage
    from bayesrnn.memory import keep_memory as keep_memory
    from bayesrnn.posterior import Draw as Draw
    from bayesrnn.posterior import Posterior as Posterior
    from bayesrnn.prediction import Categorical as Categorical
    from bayesrnn.prediction import Forecast as Forecast
    from bayesrnn.prediction import Values as Values
    from bayesrnn.prediction import calibrate as calibrate
    from bayesrnn.prediction import forecast as forecast
    from bayesrnn.prediction import predict as predict
    from bayesrnn.prediction import predict_values as predict_values
    from bayesrnn.sharpened import Sharpened as Sharpened
    from bayesrnn.variational.centred import Centred as Centred
    from bayesrnn.variational.grouped import Grouped as Grouped
    from bayesrnn.variational.normal import EmpiricalNormal as EmpiricalNormal
    from bayesrnn.variational.normal import Normal as Normal
    from bayesrnn.variational.row_mixture import RowScaleMixture as RowScaleMixture
    from bayesrnn.variational.scale_mixture import ScaleMixture as ScaleMixture

__version__ = "0.1.0"

# Imported on first use, so that `bayesrnn --help` does not load torch.
_HOME = {
    "Cuts": "bayesrnn.data.cuts",
    "Minibatches": "bayesrnn.data.minibatches",
    "risk_coverage": "bayesrnn.evaluation.abstaining",
    "keep_memory": "bayesrnn.memory",
    "Draw": "bayesrnn.posterior",
    "Posterior": "bayesrnn.posterior",
    "Categorical": "bayesrnn.prediction",
    "Forecast": "bayesrnn.prediction",
    "Values": "bayesrnn.prediction",
    "calibrate": "bayesrnn.prediction",
    "forecast": "bayesrnn.prediction",
    "predict": "bayesrnn.prediction",
    "predict_values": "bayesrnn.prediction",
    "Sharpened": "bayesrnn.sharpened",
    "Centred": "bayesrnn.variational.centred",
    "Grouped": "bayesrnn.variational.grouped",
    "EmpiricalNormal": "bayesrnn.variational.normal",
    "Normal": "bayesrnn.variational.normal",
    "RowScaleMixture": "bayesrnn.variational.row_mixture",
    "ScaleMixture": "bayesrnn.variational.scale_mixture",
}

__all__ = ["__version__", "init", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name == "init":
        return import_module("bayesrnn.init")
    if name not in _HOME:
        raise AttributeError(f"module 'bayesrnn' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
