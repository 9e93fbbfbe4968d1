"""The torch that a Python interpreter would import, found without importing it (that takes seconds)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

from seatrial.environment import self_location
from seatrial.errors import RequestError, SeatrialError
from seatrial.protocol.own_errors import first_lack
from seatrial.util.tool import find_tool

_OLDEST = (2, 4)
_OLDEST_PYTHON = (3, 10)
_TIMEOUT_S = 30

# torch/version.py holds plain assignments; reading it costs a millisecond where importing torch costs seconds.
# Python 3.10 searches the working folder whatever the environment says.
_PROGRAM = """
import sys
if sys.path[:1] == [""]: del sys.path[0]
import ast, importlib.util, json, os
spec = importlib.util.find_spec("torch")
found = {"python": sys.version.split()[0], "seatrial": importlib.util.find_spec("seatrial") is not None}
if spec is not None and spec.submodule_search_locations:
    found["version"] = ""
    try:
        with open(os.path.join(spec.submodule_search_locations[0], "version.py"), encoding="utf-8") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError):
        body = []
    for node in body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        name = getattr(target, "id", None)
        if name in ("__version__", "cuda", "hip") and isinstance(getattr(node, "value", None), ast.Constant):
            found[name.strip("_")] = node.value.value
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """A torch that an interpreter would import."""

    version: str
    cuda: str
    """CUDA version; empty: built without."""
    hip: str
    """ROCm version; empty: built without."""


def interpreter(name: str) -> str:
    """Return the program that ``--python`` names on this machine: a path as it is typed, a name as found in PATH.

    Not in the working folder, and not in an entry of PATH that means it: anybody may have put a program there. Raises
    RequestError.
    """
    path = name if os.path.dirname(name) else find_tool(name)
    if path is None:
        raise RequestError(f"--python {name}: no such program in PATH; name a Python interpreter, or give its path.")
    return path


def find_torch(python: str) -> TorchInstall:
    """Query an interpreter. Raises RequestError when it cannot run, has no torch, or it or its torch is too
    old, and SeatrialError where this host starts no process."""
    program = interpreter(python)
    try:
        done = subprocess.run(
            [program, "-c", _PROGRAM],
            # As agents are started: they do not import a folder named torch in the working folder.
            env={**os.environ, **self_location.import_variables(os.environ)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            pass_fds=self_location.BUNDLE_FDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        # Of OSError only the reason, since its text repeats the name; the text of a timeout contains our whole program.
        timed_out = isinstance(error, subprocess.TimeoutExpired)
        reason = f"no answer in {_TIMEOUT_S:g} s" if timed_out else getattr(error, "strerror", None) or error
        if lack := first_lack(str(reason)):
            raise SeatrialError(f"{python} was not started: {lack.words()} ({reason}); {lack.action}.") from error
        raise RequestError(
            f"--python {python}: it does not run as a Python interpreter ({reason}); name a Python interpreter."
        ) from error
    if tuple(int(part) for part in answer["python"].split(".")[:2]) < _OLDEST_PYTHON:
        raise RequestError(
            f"--python {python}: it is Python {answer['python']}, and seatrial needs"
            f" {_OLDEST_PYTHON[0]}.{_OLDEST_PYTHON[1]} or newer; name a newer interpreter."
        )
    version = answer.get("version")
    if version is None:
        raise RequestError(
            f"torch is not installed for {python} (Python {answer['python']}): install the torch that the cluster uses"
            " there, or name an interpreter that has it with --python."
        )
    if not answer["seatrial"]:
        raise RequestError(f"--python {python}: seatrial is not installed for it; install it there.")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise RequestError(
            f"torch {version or 'of unknown version'} of {python} is too old: seatrial needs"
            f" {_OLDEST[0]}.{_OLDEST[1]} or newer; install a newer torch or name another interpreter with --python."
        )
    return TorchInstall(version=version, cuda=answer.get("cuda") or "", hip=answer.get("hip") or "")
