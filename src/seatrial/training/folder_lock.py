"""One job a folder: a lock that the kernel gives back when its holder dies, and who holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from seatrial.errors import RequestError

__all__ = ["lock_folder"]

_NAME = "lock"
_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
_POLL_S = 0.1


def lock_folder(folder: Path, *, wait_s: float) -> int | None:
    """Lock ``folder`` for this process; closing the descriptor that is returned gives the lock back.

    The lock is ``flock`` on the file ``lock``, so a dead holder leaves none behind, whatever the file still says. A
    live one is waited for, ``wait_s`` at most: the rank that a restart replaces may take a moment to be gone. None
    where the file system has no locks. Raises RequestError, with process and host, when another job holds it, and
    OSError when the folder cannot be written to.
    """
    path = folder / _NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        give_up = time.monotonic() + wait_s
        while not _try(descriptor):
            if time.monotonic() > give_up:
                raise RequestError(
                    f"{folder} is in use by another job: {_holder(descriptor)} keeps its checkpoints there; wait until "
                    "it has ended, or give another folder."
                )
            time.sleep(_POLL_S)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            return None
        raise
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _holder(descriptor: int) -> str:
    told = {}
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(os.pread(descriptor, 1_000, 0))
    if not isinstance(told, dict) or not {"pid", "host", "since"} <= told.keys():
        return "a process that has not said who it is"  # between its lock and its first line
    return f"process {told['pid']} on {told['host']}, since {told['since']},"
