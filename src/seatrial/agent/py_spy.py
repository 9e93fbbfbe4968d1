"""py-spy, which shows the stack of a script; only one that no other user can have put there is ever run.

An agent may be root, and the script's folder or an entry of PATH may belong to the user whose script it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Mapping

from seatrial.start import way_to

_NAME = "py-spy"
_PROCESS = re.compile(r"(?:Parent )?Process \d+: ")
_THREAD = re.compile(r"Thread \S+ \((?:idle|active)[^()]*\)(?:: .*)?")
_FRAME = re.compile(r"    \S.*")


def find(program: str, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the path of a py-spy to run, and without one the sentence why one that was found is not run.

    It is looked for beside the Python that runs this agent, which is trusted already, beside the rank's interpreter,
    and in PATH. Entries that are not absolute name the working folder and are left out.

    Args:
        program: path of the rank's interpreter.
        environ: variables of the agent.
    """
    own = os.path.join(os.path.dirname(sys.executable), _NAME)
    if os.path.isabs(own) and os.path.isfile(own) and os.access(own, os.X_OK):
        return own, ""
    refused = ""
    for folder in (os.path.dirname(program), *environ.get("PATH", os.defpath).split(os.pathsep)):
        path = os.path.join(folder, _NAME)
        if not os.path.isabs(path):
            continue
        with contextlib.suppress(OSError):
            found, others = _looked_at(path)
            if found and others is None:
                return found, ""
            if found:
                refused = refused or f"{path} was not run: other users may change {others}"
    return None, refused


def _looked_at(path: str) -> tuple[str, str | None]:
    """Return the path without links in it, and the first part that a user other than root and this one can change.

    An empty path: it cannot be executed. Of the file system of another user nothing is asked, who may answer nothing.
    """
    found, others = "", None
    for name, fd, mounter, is_last in way_to(path):
        if mounter:
            return name, others or name
        status = os.fstat(fd)
        # Nobody can rename what others own in a sticky folder, and the mode of a link means nothing.
        fixed = stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)
        is_open = not fixed and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_open or status.st_uid not in (0, os.geteuid()):
            others = others or name
        if is_last and stat.S_ISREG(status.st_mode) and os.access(f"/proc/self/fd/{fd}", os.X_OK):
            found = name
    return found, others


def threads(said: str) -> str:
    """Return the threads and their frames from the output of py-spy, and what it said before them, such as an error.

    Above them py-spy writes the command line of the process, whose arguments may hold secrets and empty lines; told to,
    it also writes local variables.
    """
    kept = list[str]()
    is_stack = is_heading = False
    for line in said.split("\n"):
        if _THREAD.fullmatch(line):
            is_stack, is_heading = True, False
        elif _PROCESS.match(line):
            is_heading = True
        elif is_stack and not _FRAME.fullmatch(line):
            continue
        if line and not is_heading:
            kept.append(f"{line}\n")
    return "".join(kept)
