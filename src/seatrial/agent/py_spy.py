"""py-spy, which shows the stack of a script; only one that no other user can have put there is ever run.

An agent may be root, and the script's folder or an entry of PATH may belong to the user whose script it is.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping

from seatrial.start import status_and_mounter

_NAME = "py-spy"


def find(program: str, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the path of a py-spy to run, and without one the sentence why one that was found is not run.

    It is looked for beside the Python that runs this agent, which is trusted already, beside the rank's interpreter,
    and in PATH. Entries that are not absolute name the working folder and are left out.

    Args:
        program: path of the rank's interpreter.
        environ: variables of the agent.
    """
    own = os.path.join(os.path.dirname(sys.executable), _NAME)
    if os.path.isabs(own) and _is_executable(own):
        return own, ""
    refused = ""
    for folder in (os.path.dirname(program), *environ.get("PATH", os.defpath).split(os.pathsep)):
        path = os.path.join(folder, _NAME)
        if not os.path.isabs(path) or not _is_executable(path):
            continue
        others = _what_others_may_change(path)
        if others is None:
            return os.path.realpath(path), ""
        refused = refused or f"{path} was not run: other users may change {others}"
    return None, refused


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _what_others_may_change(path: str) -> str | None:
    """Return the first part of a path that a user other than root and this one can change. None: there is none."""
    for part in (*_parts(path), *_parts(os.path.realpath(path))):
        try:
            status, mounter = status_and_mounter(part)
        except OSError:
            return part
        if mounter or status.st_uid not in (0, os.geteuid()):
            return part
        # Nobody can rename what others own in a sticky folder, and the mode of a link means nothing.
        fixed = stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)
        if not fixed and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return part
    return None


def _parts(path: str) -> list[str]:
    """Return a path and all folders on the way to it, the outermost one first."""
    parts = [path]
    while (parent := os.path.dirname(parts[-1])) != parts[-1]:
        parts.append(parent)
    return parts[::-1]
