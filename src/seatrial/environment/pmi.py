"""The PMI-1 connection by which MPI in a rank talks to hydra, the launcher of MPICH and Intel MPI."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping


def launcher_fds(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the open descriptors of the connection; a rank that we start must inherit them."""
    try:
        fd = int(environ["PMI_FD"])
        os.fstat(fd)
    except (KeyError, ValueError, OSError, OverflowError):
        return ()
    return (fd,)


def leave_launcher(environ: Mapping[str, str]) -> None:
    """Tell hydra that the rank which we started has finished with MPI, however it ended.

    Without this, hydra kills all ranks of the job, and the process that reports with them. The line is the PMI-1
    command that MPICH's ranks send; where the rank has sent it already, nobody reads it.
    """
    for fd in launcher_fds(environ):
        with contextlib.suppress(OSError):
            os.write(fd, b"cmd=finalize\n")
