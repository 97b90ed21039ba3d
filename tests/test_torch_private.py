"""What the package relies on that torch does not promise: one test for each, to say which one broke."""

from __future__ import annotations

import copy
import shlex
import shutil
import sys

import pytest
import torch
from torch import nn

from bayesrnn import torch_private


def test_version_counts_writes_through_views_and_detached_tensors():
    vector = torch.zeros(6)
    (before,) = torch_private.versions(vector)
    view = vector[2:4].view(1, 2).detach().requires_grad_()
    vector.add_(1)
    assert torch_private.versions(vector, view) == (before + 1, before + 1)
    loss = (view * view).sum()
    vector.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_increment_version_is_seen_by_version():
    vector = nn.Parameter(torch.zeros(3))
    (before,) = torch_private.versions(vector)
    torch.autograd.graph.increment_version(vector)
    assert torch_private.versions(vector) == (before + 1,)


def test_a_running_data_parallel_wrapper_is_known(tmp_path):
    class Asks(nn.Linear):
        def forward(self, x):
            self.wrapper = torch_private.calling_ddp()
            return super().forward(x)

    file = f"file://{tmp_path}/meet"
    torch.distributed.init_process_group("gloo", init_method=file, rank=0, world_size=1)
    try:
        model = Asks(2, 2)
        wrapper = nn.parallel.DistributedDataParallel(model)
        wrapper(torch.ones(1, 2))
        assert model.wrapper is wrapper
        model(torch.ones(1, 2))
        assert model.wrapper is None
    finally:
        torch.distributed.destroy_process_group()


def test_module_inside():
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert torch_private.module_inside(compiled) is model
    assert torch_private.module_inside(model) is model


class Follower:
    def __init__(self) -> None:
        self.seen: list[torch.dtype] = []

    def follow(self, fn, apply) -> None:
        apply()
        self.seen.append(fn(torch.zeros(1)).dtype)


@pytest.mark.parametrize("nested", [False, True])
def test_after_apply_sees_every_way_to_move_or_convert(nested):
    model, follower = nn.Linear(2, 2), Follower()
    torch_private.after_apply(model, [follower])
    whole = nn.Sequential(model) if nested else model
    whole.double()
    whole.to(torch.bfloat16)
    whole.float()
    assert follower.seen == [torch.float64, torch.bfloat16, torch.float32]
    assert model.weight.dtype == torch.float32
    twin = copy.deepcopy(model)
    twin.double()
    assert len(follower.seen) == 3  # the copy has a follower of its own
    assert model.weight.dtype == torch.float32
    torch_private.forget_apply(model)
    whole.double()
    assert len(follower.seen) == 3


def test_compiler_settings_are_known_to_this_torch_and_come_back():
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    before = dynamo.specialize_float, inductor.cpp.enable_floating_point_contract_flag
    with torch_private.compiler_settings():
        assert dynamo.specialize_float is True
        assert inductor.cpp.enable_floating_point_contract_flag == "fast"
        assert inductor.cpp.enable_unsafe_math_opt_flag is False
    assert before == (dynamo.specialize_float, inductor.cpp.enable_floating_point_contract_flag)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512"
    or sys.platform != "linux"
    or shutil.which("g++") is None,
    reason="no vectors of 512 bits, or no compiler, here",
)
def test_the_compiler_is_asked_for_vectors_of_512_bits(monkeypatch):
    from torch._inductor import config as inductor
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions

    def options():
        with torch_private.compiler_settings():
            builder = CppBuilder(name="pass", sources="pass.cpp", BuildOption=CppTorchOptions())
            return shlex.split(builder.get_command_line())

    monkeypatch.setattr(inductor.cpp, "march", None)
    assert {"-march=native", "-mprefer-vector-width=512"} <= set(options())
    monkeypatch.setattr(inductor.cpp, "march", "x86-64-v4")  # the user's choice
    assert "-march=x86-64-v4" in options()
    assert "-mprefer-vector-width=512" not in options()


def test_a_failure_of_the_code_is_not_taken_for_one_of_the_machine():
    def breaks(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))
    assert not torch_private.is_of_the_machine(caught.value)
    assert torch_private.is_of_the_machine(RuntimeError("no C++ compiler"))


def test_hooks_of_a_parameter_are_seen():
    from bayesrnn.torch_private import has_hooks

    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        parameter = nn.Parameter(torch.zeros(2))
        assert not has_hooks(parameter)
        handle = getattr(parameter, register)(lambda grad: None)
        assert has_hooks(parameter)
        handle.remove()
        assert not has_hooks(parameter)
