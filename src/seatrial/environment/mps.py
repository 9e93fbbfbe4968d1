"""The service by which processes share a GPU (MPS): where the ranks look for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from seatrial.folders import exchanges

FOLDER = "/tmp/nvidia-mps"
"""Where CUDA looks for the control daemon of MPS, and the daemon listens, unless a variable names another folder."""
_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_NOWHERE = "/proc"
"""A folder that is there, and in which nobody can make anything."""


def mps_settings(environ: Mapping[str, str], folder: str = FOLDER) -> dict[str, str]:
    """Return the variable with the folder of MPS: one without any daemon, unless the user has set it, or root or this
    user listens in the usual folder, where nobody else can exchange what they listen at.

    Every user can make that folder. A program that listens there and answers nothing lets each process of other users
    that starts CUDA wait for ever (seen with driver 580.159.04), and its rank, which only waits, would be named. In a
    folder that is open to all, as many guides make that of root (chmod 777), each user can still put a socket in the
    place of root's after this look: who trusts all users of the machine sets the variable.
    """
    if environ.get(_VARIABLE) or _is_trusted(os.path.join(folder, "control")):
        return {}
    return {_VARIABLE: _NOWHERE}


def _is_trusted(path: str) -> bool:
    try:
        exchanged_by, _, _ = exchanges(path)
    except OSError:
        return False
    return not exchanged_by
