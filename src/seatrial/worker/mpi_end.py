"""How a process of ours ends that may have MPI in it; what needs mpi4py is in ``mpi_library.py``."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NoReturn

__all__ = ["LOADED", "is_mpi_error", "leave"]

LOADED: list[Any] = []
"""The ``mpi4py.MPI`` module, once ``mpi_library.load_mpi`` has initialised it."""


def is_mpi_error(error: BaseException) -> bool:
    """Whether MPI itself complained."""
    return bool(LOADED) and isinstance(error, LOADED[0].Exception)


def leave(code: int) -> NoReturn:
    """End this process now, past the exit handlers of Python: threads of a backend must not hold it up, or crash it.

    MPICH says good-bye to its launcher in an exit handler of C, and the launcher kills all ranks of whoever does not.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if "PMI_FD" in os.environ and LOADED and LOADED[0].Is_finalized():
        ctypes.CDLL(None).exit(code)
    os._exit(code)
