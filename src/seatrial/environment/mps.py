"""The service by which processes share a GPU (MPS): where the ranks look for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from seatrial.start import trusted_users, way_to

FOLDER = "/tmp/nvidia-mps"
"""Where CUDA looks for the control daemon of MPS, and the daemon listens, unless a variable names another folder."""
_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_NOWHERE = "/proc"
"""A folder that is there, and in which nobody can make anything."""


def mps_settings(environ: Mapping[str, str], folder: str = FOLDER) -> dict[str, str]:
    """Return the variable with the folder of MPS: one without any daemon, unless the user has set it, or root or this
    user listens in the usual folder.

    Every user can make that folder. A program that listens there and answers nothing lets each process of other users
    that starts CUDA wait for ever (seen with driver 580.159.04), and its rank, which only waits, would be named.
    """
    if environ.get(_VARIABLE) or _is_trusted(os.path.join(folder, "control")):
        return {}
    return {_VARIABLE: _NOWHERE}


def _is_trusted(path: str) -> bool:
    """Return whether something is at a path, and no other user owns it or has mounted what is on its way."""
    with contextlib.suppress(OSError):
        for name, fd, mounted_by, is_last in way_to(path):
            if mounted_by or os.fstat(fd).st_uid not in trusted_users(name):
                return False
            if is_last:
                return True
    return False
