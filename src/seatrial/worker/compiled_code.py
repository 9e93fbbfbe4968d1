"""Where a rank keeps the code that torch.compile makes.

torch loads it from ``/tmp/torchinductor_USER``, pickles among it, and never asks who has made that folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading

from seatrial.errors import RequestError
from seatrial.folders import NotPrivateError, is_kept, keep, new_temporary_folder, own_temporary_folder

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_RENEWED_S = 3600.0
"""Interval in which the times of the folder are set."""
_AT_END = contextlib.ExitStack()


def keep_compiled_code_private() -> None:
    """Have torch, and the compilers that it starts, use a folder of this user alone. Call it before torch is imported.

    Not below the home folder, which hosts with other CPUs may share: torch does not compile again for those. Raises
    RequestError where there is no such folder and the variables of the caches are not set either: a pod has its
    folders for all that, which Kubernetes leaves open to all who are in it.
    """
    try:
        folder = _folder()
    except OSError as error:
        if all(os.environ.get(name) for name in _CACHES):
            return
        raise RequestError(
            f"--compile: {socket.gethostname()} has no place for compiled code that only this user can change"
            f" ({error.strerror or error}); set TMPDIR to one there, or leave --compile out."
        ) from error
    # Precompiled headers (torch/_inductor/codecache.py) and other caches are among temporary files, whatever the
    # variables below say.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    for name in _CACHES:
        if not os.environ.get(name):
            os.environ[name] = os.path.join(folder, name.removesuffix("_CACHE_DIR").lower())


def release_compiled_code() -> None:
    """Give the folder up, and remove one that only this rank finds. Call it at the end of a rank, which runs no
    handlers of ``atexit``."""
    _AT_END.close()


def _folder() -> str:
    """Return the folder of this user, which the next run finds again; where others have taken its name, a new one for
    this process. It is kept, as torch may compile again after weeks."""
    try:
        folder, fd = keep(own_temporary_folder)
        _AT_END.callback(os.close, fd)
    except NotPrivateError:
        folder, fd = keep(new_temporary_folder)
        _AT_END.callback(os.close, fd)
        _AT_END.callback(_remove, folder, fd)
    is_over = threading.Event()
    thread = threading.Thread(target=_renew, args=(fd, is_over), name="times of compiled code", daemon=True)
    thread.start()
    _AT_END.callback(thread.join, 1.0)
    _AT_END.callback(is_over.set)
    return folder


def _renew(fd: int, is_over: threading.Event) -> None:
    """Keep the folder from cleaners that look at no lock, but at the age of what they find."""
    while not is_over.wait(_RENEWED_S):
        with contextlib.suppress(OSError):
            os.utime(fd)


def _remove(folder: str, fd: int) -> None:
    with contextlib.suppress(OSError):
        if is_kept(folder, fd):
            shutil.rmtree(folder, ignore_errors=True)
