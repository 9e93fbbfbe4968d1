"""The malloc settings for memory that MPI allocates and frees within each call."""

from __future__ import annotations

import ctypes
import os

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK_BYTES = 256 << 20
"""MPI's buffers within a call are as large as the message or a rank's share of it; few messages are larger than
this."""
_TRIM_BYTES = 2 * _BLOCK_BYTES
"""glibc also uses twice its block threshold where it chooses both by itself."""
_USER_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, where libc is glibc and the user has not configured malloc; return whether it
    was set.

    A large reduction allocates a buffer and frees it at its end. glibc returns a block of more than 32 MiB to the
    system each time, and the next call must map and zero each of its pages again, which takes a third of its time.
    """
    if any(name in os.environ for name in _USER_SETTINGS) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # This one first: an older glibc refuses this size, and setting the other one would disable its dynamic thresholds.
    return mallopt is not None and bool(
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    )
