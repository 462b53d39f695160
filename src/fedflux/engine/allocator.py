"""The C library's allocator, told what training does: free and ask again for the same megabytes at every step.

It cannot be told to forget it, so that only processes that are fedflux's own tell it: workers and the command line.
"""

import ctypes
from contextlib import suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 256 * 2**20
"""Up to how many freed bytes stay with the process."""
FROM_HEAP = 32 * 2**20
"""Blocks up to this size are taken from what was freed."""


@cache
def keep_freed_memory() -> None:
    """Let activations reuse the memory of the step before.

    By default glibc gives it back to the system after each step and gets it again page by page, which costs LeNet-5
    up to a third of its time. Other C libraries are left as they are; numbers are never touched.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, FROM_HEAP)
