"""The memory of a process that trains."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Let the C library keep what a step frees for the next step; whether it could be told so.

    Otherwise large tensors go back to the system when they are freed, and each step gets them anew, page by
    page: some 20,000 pages, and five to ten percent of its time. For the whole process, so for a
    program to decide and not for a library.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
