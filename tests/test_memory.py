"""Freed memory is kept by the process, under glibc."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys

import pytest

from bayesrnn.memory import keep_memory

PROGRAM = """
import resource, sys
import torch
from bayesrnn.memory import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory()
def touch():
    for size in (2_000_000, 10_000_000):
        torch.ones(size)
for _ in range(20):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_memory_is_reused():
    pages = 12_000_000 * 4 // mmap.PAGESIZE
    faults = {
        way: int(subprocess.check_output([sys.executable, "-c", PROGRAM, way]))
        for way in ("keep", "give back")
    }
    assert faults["keep"] < pages / 2  # in ten rounds
    assert faults["keep"] < faults["give back"] / 5


def test_without_glibc_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_memory() is False
