"""Compiled, in stretches, or as written: one and the same result."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch._inductor.exc

import bayesrnn
from bayesrnn.kernels import noise, one_pass, passes
from bayesrnn.variational.normal import VectorNormal

SIZE = 3001


@pytest.fixture
def vectors():
    torch.manual_seed(0)
    return {
        "mu": 0.1 * torch.randn(SIZE),
        "held": torch.randn(SIZE),
        "sigma": 0.05 * torch.rand(SIZE) + 1e-3,
        "eps": torch.randn(SIZE),
        "rho": torch.randn(SIZE) - 3,
        "g": torch.randn(SIZE),
        "g_phi": torch.randn(SIZE),
        "kappa": torch.rand(SIZE),
    }


MIXTURE = bayesrnn.ScaleMixture(0.75, math.exp(-1), math.exp(-6))
WEIGHT = torch.tensor(0.3, dtype=torch.float64)
WEIGHTS = {"kl_weight": WEIGHT, "sigma_weight": WEIGHT / 2}
KEY = torch.tensor([1, -2, 3, 4], dtype=torch.int32)
SHARPENING = {"eta_unit": 0.008, "sigma0": 0.02}
GRADIENTS = ("held", "sigma", "mu", "g")
CASES = {
    "sample": (passes.sample_, ("held", "sigma", "mu", "rho"), {"key": KEY}),
    "sampled": (passes.sampled_gradients_, GRADIENTS, {"prior": MIXTURE, **WEIGHTS}),
    "expected": (passes.expected_gradients_, GRADIENTS, {"prior": MIXTURE, **WEIGHTS}),
    "normal": (passes.expected_gradients_, GRADIENTS, {"prior": bayesrnn.Normal(0.3), **WEIGHTS}),
    "by weight": (
        passes.expected_gradients_,
        (*GRADIENTS, "kappa", "g_phi"),
        {"prior": VectorNormal, **WEIGHTS},
    ),
    "sharpen": (passes.sharpen_, ("held", "mu", "g_phi", "kappa"), {**SHARPENING, "key": KEY}),
    "kappa": (
        passes.kappa_gradient_,
        ("g_phi", "g", "kappa"),
        {**SHARPENING, "loss_scale": 0.05},
    ),
    "noise": (noise.normal_, ("eps",), {"key": KEY}),
}
# What a pass reads, and what it changes.
READ = {
    "sample": ("mu", "rho"),
    "sharpen": ("mu", "g_phi", "kappa"),
    "kappa": ("g_phi", "g", "kappa"),
    "noise": (),
    "by weight": (*GRADIENTS, "kappa", "g_phi"),
} | dict.fromkeys(("sampled", "expected", "normal"), GRADIENTS)
CHANGED = {"sharpen": ("held",), "kappa": ("g_phi",), "noise": ("eps",)} | dict.fromkeys(
    ("sample", "sampled", "expected", "normal", "by weight"), ("held", "sigma")
)


def _run(case, vectors):
    function, names, settings = CASES[case]
    mine = {name: vector.clone() for name, vector in vectors.items()}
    function(*(mine[name] for name in names), **settings)
    return {name: mine[name] for name in names}


@pytest.mark.parametrize("case", CASES)
def test_stretches_are_the_whole(case, vectors, monkeypatch):
    whole = _run(case, vectors)
    monkeypatch.setattr(one_pass, "STRETCH", 129)
    parts = _run(case, vectors)
    for name, vector in whole.items():
        torch.testing.assert_close(parts[name], vector, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_compiled_is_as_written(case, vectors, monkeypatch):
    written = _run(case, vectors)
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    compiled = _run(case, vectors)
    assert one_pass.enabled, "it did not compile"
    for name, vector in written.items():
        torch.testing.assert_close(compiled[name], vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["written", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_a_nan_is_not_lost(case, compiled, vectors, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", compiled)
    for name in READ[case]:
        spoilt = {**vectors, name: vectors[name].index_fill(0, torch.tensor([1, 2000]), math.nan)}
        after = _run(case, spoilt)
        assert any(after[n][[1, 2000]].isnan().all() for n in CHANGED[case]), name


@pytest.mark.parametrize("error", [torch._inductor.exc.InvalidCxxCompiler, RuntimeError])
def test_without_a_compiler_one_line_and_the_same_result(error, vectors, monkeypatch):
    written = _run("sample", vectors)
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    monkeypatch.setattr(passes._sample_, "_compiled", {})

    def fail(*args, **kwargs):
        raise error() if error is not RuntimeError else error("not supported on this Python")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.warns(UserWarning, match="torch.compile does not work here for sample,"):
        first = _run("sample", vectors)
    second = _run("sample", vectors)  # and no second warning
    for result in (first, second):
        assert all(torch.equal(result[name], vector) for name, vector in written.items())


def test_many_priors_compile_and_none_changes_how_warnings_are_shown(vectors, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    monkeypatch.setattr(passes.sampled_gradients_, "_compiled", {})
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compile_(f, backend="eager", **kw))
    filters = list(warnings.filters)
    for number in range(12):
        prior = bayesrnn.ScaleMixture(0.5, 1.0, 0.01 * (number + 1))
        mine = {name: vectors[name].clone() for name in GRADIENTS}
        passes.sampled_gradients_(*mine.values(), prior=prior, **WEIGHTS)
    assert len(passes.sampled_gradients_._compiled) == 12
    assert all(passes.sampled_gradients_._compiled.values())
    assert warnings.filters == filters


def test_autocast_changes_nothing(vectors, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    outside = _run("sample", vectors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = _run("sample", vectors)
    assert all(torch.equal(inside[name], vector) for name, vector in outside.items())


def test_code_made_inside_inference_mode_serves_vectors_from_outside(vectors, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(one_pass, "enabled", True)
    outside = _run("sampled", vectors)
    function, names, settings = CASES["sampled"]
    mine = [vectors[name].clone() for name in names]
    again = [vectors[name].clone() for name in names]
    with torch.inference_mode(), torch._dynamo.config.patch(error_on_recompile=True):
        for vectors_ in (mine, again):
            function(*vectors_, **settings)
    assert torch.equal(mine[0], outside["held"])


@dataclass
class OrdinaryPrior:
    """A user's prior that can change, and so has no hash."""

    width: float
    elementwise: ClassVar[bool] = True

    def log_prob(self, theta):
        return -0.5 * (theta / self.width).square()

    def score(self, theta):
        return -theta / self.width**2


def test_a_prior_that_can_change_is_compiled_with_the_values_it_has(vectors, monkeypatch):
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(passes.sampled_gradients_, "_compiled", {})
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compile_(f, backend="eager", **kw))
    prior = OrdinaryPrior(0.5)
    for width in (0.5, 0.25):
        prior.width = width
        mine, right = ({name: vectors[name].clone() for name in GRADIENTS} for _ in range(2))
        passes.sampled_gradients_(*mine.values(), prior=prior, **WEIGHTS)
        passes.sampled_gradients_.function(*right.values(), prior=prior, **WEIGHTS)
        torch.testing.assert_close(mine, right)
    assert len(passes.sampled_gradients_._compiled) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.use_deterministic_algorithms(True),
    ],
    ids=["default dtype", "matmul precision", "deterministic"],
)
def test_torchs_global_state_never_recompiles_outside_our_settings(vectors, monkeypatch, change):
    """Each state has code of its own, compiled by us; none is compiled by a guard that fails."""
    monkeypatch.setattr(one_pass, "LONG", 1)
    monkeypatch.setattr(passes.expected_gradients_, "_compiled", {})
    compile_, precision = torch.compile, torch.get_float32_matmul_precision()
    compilations = []

    def compiled(f, **kw):
        compilations.append(f)
        return compile_(f, backend="eager", **kw)

    monkeypatch.setattr(torch, "compile", compiled)

    def run():
        mine = {name: vectors[name].clone() for name in GRADIENTS}
        passes.expected_gradients_(*mine.values(), prior=MIXTURE, **WEIGHTS)

    try:
        run()
        change()
        run()
        with torch.compiler.set_stance("fail_on_recompile"):
            run()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
    with torch.compiler.set_stance("fail_on_recompile"):
        run()
    assert len(compilations) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    ],
    ids=["default dtype", "matmul precision", "deterministic", "threads"],
)
def test_compiler_state_has_what_the_compiler_guards(change):
    """Code that was compiled under another state is compiled anew, so the state must tell them apart."""
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x: x * 2, backend=counter)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    state = one_pass._compiler_state("cpu")
    x = torch.ones(4)
    try:
        compiled(x)
        change()
        compiled(x)
        assert one_pass._compiler_state("cpu") != state
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert one_pass._compiler_state("cpu") == state
    assert counter.frame_count == 2  # else it need not be in the state
