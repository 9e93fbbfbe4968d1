"""Where a rank keeps the code that torch.compile makes.

torch loads it from ``/tmp/torchinductor_USER``, pickles among it, and never asks who has made that folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile

from seatrial.errors import RequestError
from seatrial.folders import NotPrivateError, kept_folder, new_temporary_folder, own_temporary_folder

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_NOWHERE = "/proc"
"""A folder that is there, and in which nobody can make anything."""
_AT_END = contextlib.ExitStack()


def keep_no_compiled_code() -> None:
    """Have torch, which compiles nothing in this rank, make no folder for compiled code. Call it before torch is
    imported.

    It makes that folder all the same, as soon as a strategy imports torch._dynamo (torch 2.13): a file of that name, or
    the silent file system of a neighbor, ended or stopped each training.
    """
    if not os.environ.get(_CACHES[0]):
        os.environ[_CACHES[0]] = _NOWHERE


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
        return _AT_END.enter_context(kept_folder(own_temporary_folder, is_removed=False))
    except NotPrivateError:
        return _AT_END.enter_context(kept_folder(new_temporary_folder, is_removed=True))
