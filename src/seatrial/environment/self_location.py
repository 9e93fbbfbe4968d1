"""The location of seatrial's code, an installation or the bundle, and how processes that we start find it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import seatrial

_ARCHIVE = getattr(seatrial.__loader__, "archive", None)
BUNDLE_PATH: str | None = None if _ARCHIVE is None else str(Path(_ARCHIVE).absolute())
"""Absolute path of the bundle that runs; None for an installation. Computed at import, before the working folder can
change."""
_IN_MEMORY = re.fullmatch(r"/proc/self/fd/([0-9]{1,9})", BUNDLE_PATH or "")
BUNDLE_FDS: tuple[int, ...] = (int(_IN_MEMORY[1]),) if _IN_MEMORY else ()
"""The descriptor of a bundle without a name (``start.py``), for ``pass_fds`` of each process that imports seatrial."""

_MARK = "seatrial"
"""Our value of PYTHONSAFEPATH, which any text switches on; it differs from a value that a user sets."""

# Python 3.10 ignores PYTHONSAFEPATH: with `-m`, a torch.py in the working folder would be imported in place of torch.
_RUN_MODULE = (
    'import sys; del sys.path[: sys.path[:1] == [""]]; import runpy;'
    ' runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def import_variables(environ: Mapping[str, str], bundle: str | None = BUNDLE_PATH) -> dict[str, str]:
    """Return the variables that a Python process needs, in addition to ``environ`` and ``BUNDLE_FDS``, to import what
    this process imports."""
    # A torch.py or random.py in the working folder must not be imported in place of the real one.
    variables = {"PYTHONSAFEPATH": environ.get("PYTHONSAFEPATH") or _MARK}
    before = environ.get("PYTHONPATH", "")
    if bundle is not None and before.split(os.pathsep)[0] != bundle:
        variables["PYTHONPATH"] = f"{bundle}{os.pathsep}{before}" if before else bundle
    return variables


def without_import_variables(environ: Mapping[str, str], bundle: str | None = BUNDLE_PATH) -> dict[str, str]:
    """Return ``environ`` without the variables that ``import_variables`` added: for a program of the user."""
    variables = dict(environ)
    if variables.get("PYTHONSAFEPATH") == _MARK:
        del variables["PYTHONSAFEPATH"]
    first, _, rest = variables.get("PYTHONPATH", "").partition(os.pathsep)
    if bundle is not None and first == bundle:
        del variables["PYTHONPATH"]
        if rest:
            variables["PYTHONPATH"] = rest
    return variables


def module_argv(python: str, module: str) -> tuple[str, ...]:
    """Return the command that runs a module of ours, and never a file of that name in the working folder."""
    if python == sys.executable and sys.version_info >= (3, 11):
        return (python, "-m", module)
    return (python, "-c", _RUN_MODULE, module)


def run_module() -> None:
    """Run a module of the bundle as a program: ``python3 seatrial.pyz -m MODULE [ARGUMENT]...``.

    The working folder is not in its path, and the processes that it starts find the bundle.
    """
    import runpy  # No other process needs it.

    module = sys.argv.pop(2)
    del sys.argv[1]
    os.environ.update(import_variables(os.environ))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def command_line() -> str:
    """Return the words by which a person starts seatrial here, for messages with a command to copy."""
    return "seatrial" if BUNDLE_PATH is None else shlex.join([sys.executable, BUNDLE_PATH])


def exit_on_sigterm() -> None:
    """Make process 1 of a container end at SIGTERM, which it would ignore by default."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
