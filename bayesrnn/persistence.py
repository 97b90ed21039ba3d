"""A posterior in one safetensors file: mu, rho and kappa by weight name, the prior, the selection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bayesrnn.storage import check_header, check_state, copy_state, digest
from bayesrnn.torch_private import module_inside
from bayesrnn.variational import priors
from bayesrnn.warn import warn
from bayesrnn.weights.flat import FlatWeights, is_bound

if TYPE_CHECKING:
    from bayesrnn.posterior import Posterior

FORMAT = "bayesrnn-posterior-1"
SCHEMA = {
    "prior": (dict, type(None)),
    "prior_type?": str,
    "select": list,
    "kl_gradient?": str,
    "sigma_temperature?": (int, float),
    "frozen?": list,
    "left_out?": list,
    "without?": list,
    "without_sha256?": str,
}
"""The entries of a posterior's header."""
PRIOR = "prior."
"""What the names of a prior's own tensors begin with."""


def state_of(posterior: Posterior) -> dict[str, Tensor]:
    """mu and rho by weight name, and the model's other parameters and buffers."""
    posterior.weights.check()
    return _state(posterior.weights, posterior.mu.detach(), posterior.rho.detach())


def prior_tensors(posterior: Posterior) -> dict[str, Tensor]:
    """The prior's own tensors, which a file has beside the state."""
    own = priors.tensors_of(posterior.prior, posterior.layout)
    return {PRIOR + name: tensor for name, tensor in own.items()}


def load_state(
    posterior: Posterior, present: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> None:
    """Copy a state over the present one, all of it or nothing."""
    if not posterior.weights.at_rest:
        raise ValueError("load_state_dict inside sample(): leave the block first.")
    copy_state(present, given)
    posterior.weights.refresh()


def header_of(posterior: Posterior) -> dict[str, Any]:
    """What a file says beside the tensors: format, prior, selection."""
    weights = posterior.weights
    names = {"frozen": weights.frozen(), "left_out": list(weights.left_out)}
    return {
        "format": FORMAT,
        "prior": priors.to_config(posterior.prior),
        "prior_type": type(posterior.prior).__qualname__,
        "select": [slot.name for slot in posterior.layout],
        "kl_gradient": posterior.kl_gradient,
        "sigma_temperature": posterior.sigma_temperature,
        **{entry: listed for entry, listed in names.items() if listed},
    }


def without_frozen(
    posterior: Posterior, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state without frozen parameters, and what the header says of these: names and a digest."""
    frozen = [f"model.{name}" for name in posterior.weights.frozen()]
    omitted = {name: state[name] for name in frozen if name in state}
    kept = {name: tensor for name, tensor in state.items() if name not in omitted}
    entries = {"without": list(omitted), "without_sha256": digest(omitted, {})}
    return kept, entries if omitted else {}


def check_arguments(path: object, model: object) -> None:
    """Raise if `load` was not given a file and a model, in this order."""
    if isinstance(path, nn.Module):
        raise ValueError(f"load takes the file first: load(file, {type(path).__name__}(...)).")
    if isinstance(model, type):
        name = model.__name__
        raise ValueError(f"model is the class {name}; build it: {name}().")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass the plain model, built anew.")
    if is_bound(model):
        raise ValueError("this model is already Bayesian; pass a fresh one.")


def from_state(
    kind: type[Posterior],
    state: Mapping[str, Tensor],
    header: Mapping[str, Any],
    model: nn.Module,
    prior: Any = None,
    *,
    source: str = "the state",
) -> Posterior:
    """A posterior of this class around `model`, from a state and a header."""
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{source} has format {header.get('format')!r}, not {FORMAT!r}: "
            "it was written by another version, or is no posterior."
        )
    check_header(header, SCHEMA, source)
    if prior is None:
        if header["prior"] is None:
            raise ValueError(
                f"{source} was saved with a prior of type {header.get('prior_type')}, which only "
                "its author can make: pass it as prior=."
            )
        own = {n[len(PRIOR) :]: t for n, t in state.items() if n.startswith(PRIOR)}
        try:
            prior = priors.from_config(header["prior"], own)
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from None
    ours = {k: v for k, v in state.items() if k.startswith(("mu.", "rho.", "model."))}
    _check_selection(header["select"], model, source)

    def select(name: str, _: Tensor) -> bool:
        return name in header["select"]

    unbound = FlatWeights(model, select)
    start = unbound.start()
    expected = {
        **_prefixed("mu", unbound.named(start)),
        **_prefixed("rho", unbound.named(start)),
        **_prefixed("model", _others(module_inside(model), header["select"])),
    }
    for name in header.get("without", ()):
        if name not in expected:
            raise ValueError(f"{source} was saved without {name!r}, and this model has none.")
    missing = {name: expected[name].detach().clone() for name in header.get("without", ())}
    ours = {**missing, **ours}
    check_state(expected, ours, source)
    frozen = _frozen_in(model, header, source)
    if "without_sha256" in header and header["without_sha256"] != digest(missing, {}):
        warn(
            f"{len(missing)} tensors are not in this file and differ from those it was saved with; "
            f"give the model the pretrained weights of that time, then load {source}."
        )
    posterior = kind(
        model,
        prior,
        select=select,
        kl_gradient=header.get("kl_gradient", "sampled"),
        sigma_temperature=header.get("sigma_temperature", 1.0),
    )
    posterior.load_state_dict(ours)
    posterior.weights.left_out = header.get("left_out", [])
    for parameter in frozen:
        parameter.requires_grad_(False)
    return posterior


def _frozen_in(model: nn.Module, header: Mapping[str, Any], source: str) -> list[nn.Parameter]:
    """The parameters of the model that were frozen when the file was written."""
    named = dict(module_inside(model).named_parameters(remove_duplicate=False))
    names = header.get("frozen", [])
    for name in names:
        if name not in named or name in header["select"]:
            raise ValueError(f"{source} is damaged: {name!r} is no ordinary parameter to freeze.")
    return [named[name] for name in names]


def _check_selection(selected: list[str], model: nn.Module, source: str) -> None:
    """Raise unless the model has these weights, and they can be trained."""
    named = dict(module_inside(model).named_parameters())
    for name in selected:
        if name not in named:
            raise ValueError(
                f"{source} has weights {name!r}; this model has none of that name, but "
                f"{', '.join(sorted(named)[:6])}. Build the architecture it was saved with."
            )
        if not named[name].requires_grad:
            raise ValueError(
                f"{source} has Bayesian weights {name!r}, which are frozen in this model; call "
                "requires_grad_(True) before loading."
            )


def _state(weights: FlatWeights, mu: Tensor, rho: Tensor) -> dict[str, Tensor]:
    return {
        **_prefixed("mu", weights.named(mu)),
        **_prefixed("rho", weights.named(rho)),
        **_prefixed("model", weights.ordinary_state()),
    }


def _others(model: nn.Module, selected: list[str]) -> dict[str, Tensor]:
    """The state of an ordinary model without these weights, under whatever other names they stand too."""
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen = {id(named[name]) for name in selected}
    own = {name for name, parameter in named.items() if id(parameter) in chosen}
    return {name: value for name, value in model.state_dict().items() if name not in own}


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
