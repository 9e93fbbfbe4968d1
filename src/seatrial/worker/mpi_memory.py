"""What becomes of the memory that MPI takes and frees within each call."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK_BYTES = 256 << 20
"""MPI's buffers within a call are as large as the message, or a rank's share of it; few messages are larger."""
_TRIM_BYTES = 2 * _BLOCK_BYTES
"""glibc too takes twice its threshold for single blocks, where it chooses both by itself."""
_OF_THE_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process, where libc is glibc and the user has not said otherwise.

    A large reduction takes a buffer with malloc and frees it at its end. glibc returns a block of more than 32 MiB to
    the system each time, and each of its pages is then made and zeroed anew in the next call, which takes a
    third of its time. Returns whether glibc was told.
    """
    if any(name in os.environ for name in _OF_THE_USER) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # This one first: an older glibc refuses so large a block, and to set the other would end its own adapting.
    return mallopt is not None and bool(
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    )
