"""Memory allocation of a training process."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Make glibc's allocator keep freed memory for the next step; returns whether that worked.

    By default glibc returns large freed tensors to the system, and each step allocates them again page by
    page: some 20,000 page faults, five to ten percent of its time, and more with a posterior, which adds
    vectors as long as the model. The setting affects the whole process, so it is for a program to make, not
    for a library: call it once, before training. `bayesrnn train` does.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
