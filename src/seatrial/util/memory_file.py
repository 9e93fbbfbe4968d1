"""Files in memory, without a name: nobody can exchange one, and nothing is left of it when this process was killed."""

from __future__ import annotations

import ctypes
import fcntl
import os

# The Pythons of conda and uv are built where os and fcntl get none of these, and run where the C library has them.
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4


def create(content: bytes = b"") -> int:
    """Return the descriptor of a new file with this content. Each opening of /proc/self/fd/N begins at its first byte.

    Raises OSError.
    """
    memfd_create = ctypes.CDLL(None, use_errno=True).memfd_create
    fd: int = memfd_create(b"seatrial", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.close(fd)
        raise
    return fd


def keep_size(fd: int) -> None:
    """Let nobody make the file shorter or longer."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
