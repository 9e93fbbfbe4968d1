"""One job per folder: a lock that the kernel releases when its holder dies, and the name of that holder."""

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
from seatrial.files import open_lock, other_holders, write_holder

_NAME = "lock"
_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
_POLL_S = 0.1


def lock_folder(folder: Path, *, named: Path, wait_s: float) -> int | None:
    """Lock ``folder``, which messages call ``named``, for this process. Return a descriptor; closing it releases the
    lock.

    The lock is ``flock`` on the file ``lock``, so a dead holder leaves no lock behind, whatever the file says. A live
    holder is given up to ``wait_s`` seconds: a rank that a restart replaces may take a moment to exit. Returns None
    where the file system has no locks. Raises RequestError, with process and host, when another job holds the lock, and
    OSError when the folder cannot be written to.
    """
    path = folder / _NAME
    descriptor = open_lock(path)
    try:
        give_up = time.monotonic() + wait_s
        while not _try(descriptor):
            if time.monotonic() > give_up:
                raise RequestError(
                    f"{named} is in use by another job: {_holder(descriptor)} writes its checkpoints there; wait "
                    f"until it has ended, or give another folder{other_holders(descriptor, named / _NAME)}."
                )
            time.sleep(_POLL_S)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        # Another user may have put a link to a folder of ours there, in which a file of that name is something else.
        if not (said := os.pread(descriptor, 1_000, 0)) or _read_holder(said):
            write_holder(descriptor, f"{json.dumps(holder)}\n")
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
    said = b""
    with contextlib.suppress(OSError):
        said = os.pread(descriptor, 1_000, 0)
    if not (holder := _read_holder(said)):
        return "an unknown process"  # it has locked the file and not yet written to it
    # Another user may have written it.
    pid, host, since = (ascii(str(holder[name])[:100])[1:-1] for name in ("pid", "host", "since"))
    return f"process {pid} on {host}, since {since},"


def _read_holder(said: bytes) -> dict[str, object]:
    """Return the process that holds or has held a lock; empty: the file says something else."""
    with contextlib.suppress(ValueError, RecursionError):
        holder = json.loads(said)
        if isinstance(holder, dict) and {"pid", "host", "since"} <= holder.keys():
            return holder
    return {}
