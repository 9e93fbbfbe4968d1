"""Where our own code is: installed, or in the file that travels; and how a process that we start finds it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Mapping

import seatrial

__all__ = ["BUNDLE", "environ_for", "environ_without", "heed_sigterm", "is_whole", "module_argv", "typed"]

_ARCHIVE = getattr(seatrial.__loader__, "archive", None)
BUNDLE: str | None = None if _ARCHIVE is None else os.path.abspath(_ARCHIVE)
"""The file that travels, when it is what runs: worked out before anybody changes the working folder."""

_OURS = "seatrial"
"""Our own PYTHONSAFEPATH, which any text switches on, is told from a user's by it."""

# Python 3.10 knows no PYTHONSAFEPATH: `-m` would look into the working folder first, and a torch.py there would win.
_WITHOUT_FOLDER = (
    'import sys; del sys.path[: sys.path[:1] == [""]]; import runpy;'
    ' runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def is_whole() -> bool:
    """Whether all of our code is here that a trial can use: it is installed, or lies beside the file that travels."""
    return importlib.util.find_spec("seatrial.verdict.culprits") is not None


def environ_for(environ: Mapping[str, str], bundle: str | None = BUNDLE) -> dict[str, str]:
    """What the environment of a Python process must have beside ``environ`` to import what this process imports."""
    # A torch.py or random.py in the folder where the user stands must not be imported instead of the real one.
    told = {"PYTHONSAFEPATH": environ.get("PYTHONSAFEPATH") or _OURS}
    before = environ.get("PYTHONPATH", "")
    if bundle is not None and before.split(os.pathsep)[0] != bundle:
        told["PYTHONPATH"] = f"{bundle}{os.pathsep}{before}" if before else bundle
    return told


def environ_without(environ: Mapping[str, str], bundle: str | None = BUNDLE) -> dict[str, str]:
    """``environ`` as it was before ``environ_for``: for a program that is none of ours."""
    found = dict(environ)
    if found.get("PYTHONSAFEPATH") == _OURS:
        del found["PYTHONSAFEPATH"]
    first, _, rest = found.get("PYTHONPATH", "").partition(os.pathsep)
    if bundle is not None and first == bundle:
        del found["PYTHONPATH"]
        if rest:
            found["PYTHONPATH"] = rest
    return found


def module_argv(python: str, module: str) -> tuple[str, ...]:
    """The command that runs a module of ours, and nothing from the working folder in its place."""
    if python == sys.executable and sys.version_info >= (3, 11):
        return (python, "-m", module)
    return (python, "-c", _WITHOUT_FOLDER, module)


def typed() -> str:
    """What a person types to call us, for a line that can be copied."""
    return "seatrial" if BUNDLE is None else shlex.join([sys.executable, BUNDLE])


def heed_sigterm() -> None:
    """End at SIGTERM until somebody handles it better: process 1 of a container does not, unless it asks for it."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
