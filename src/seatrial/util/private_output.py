"""Standard output that gets a secret: only where no other user can read it, or change it before it is used."""

from __future__ import annotations

import os
import stat
import sys

from seatrial.errors import RequestError
from seatrial.files import kind_of
from seatrial.start import mounted_by

_NULL = os.makedev(1, 3)


def require_private_output(what: str) -> None:
    """Raise RequestError where standard output is open to other users: ``>`` opens whatever a neighbor has put there.

    Pipes, sockets, /dev/null and the user's terminal pass, and so does a file of the user that nobody else can open.

    Args:
        what: what is printed, and by which option: the first words of the message.
    """
    try:
        fd = sys.stdout.fileno()
        status = os.fstat(fd)
    except (AttributeError, OSError, ValueError):
        return  # Closed, or an object of this process.
    if found := _open_to_others(fd, status):
        raise RequestError(
            f"{what}, and standard output is {found}. Pipe it (seatrial ... --dry-run | kubectl apply -f -), or remove"
            " that file and write a new one in a folder that only you can write to:"
            " (umask 077; seatrial ... --dry-run > FILE)."
        )


def _open_to_others(fd: int, status: os.stat_result) -> str:
    """Return what an open file is that others can open, too; empty for any other one."""
    mode = status.st_mode
    if stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and (status.st_rdev == _NULL or _is_own_terminal(fd, status))):
        return ""
    if stat.S_ISFIFO(mode):
        return f"a FIFO of user {status.st_uid}" if _has_name(fd) else ""
    if not stat.S_ISREG(mode):
        return f"{kind_of(status)} of user {status.st_uid}"
    try:
        user = mounted_by(fd) or status.st_uid
    except OSError as error:
        return f"a file that cannot be judged ({error.strerror})"
    # Root reads everything anyway, and may have opened the file for this user (sudo -u).
    if user not in (0, os.geteuid()):
        return f"a file of user {user}"
    if status.st_nlink > 1:
        return f"a file with {status.st_nlink} names (hard links)"
    return f"a file that is open to other users ({stat.filemode(mode)})" if mode & 0o077 else ""


def _is_own_terminal(fd: int, status: os.stat_result) -> bool:
    """Return whether it is a terminal of this user, or the one at which the user sits, whose owner is another one after
    su; the name that ``>`` opened may be a link to the terminal of a neighbor."""
    if not os.isatty(fd):
        return False
    try:
        os.tcgetpgrp(fd)  # The kernel answers for the controlling terminal alone.
    except OSError:
        return status.st_uid == os.geteuid()
    return True


def _has_name(fifo: int) -> bool:
    """Return whether a FIFO lies in a folder, where others may open it; False where the kernel does not say it."""
    try:
        return not os.readlink(f"/proc/self/fd/{fifo}").startswith("pipe:[")
    except OSError:
        return False
