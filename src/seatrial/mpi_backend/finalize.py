"""The end of a process that may have used MPI. Importing this does not load mpi4py; ``library.py`` does."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NoReturn

LOADED: list[Any] = []
"""The ``mpi4py.MPI`` module, once ``library.load_mpi`` has initialized MPI."""


def is_mpi_error(error: BaseException) -> bool:
    """Return whether MPI itself raised the error."""
    return bool(LOADED) and isinstance(error, LOADED[0].Exception)


def leave(code: int) -> NoReturn:
    """End this process now, without Python's exit handlers: threads of a backend must not delay or crash it.

    MPICH signs off from its launcher in an exit handler of C, and the launcher kills all ranks if one does not.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if "PMI_FD" in os.environ and LOADED and LOADED[0].Is_finalized():
        ctypes.CDLL(None).exit(code)
    os._exit(code)
