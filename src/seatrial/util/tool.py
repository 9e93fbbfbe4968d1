"""Other programs, such as the tools of a driver: they may wait in the kernel forever, and must not hold us up."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping

_KILL_TIMEOUT_S = 2.0
_MOST_BYTES = 1 << 24
"""A hundred times what any of them prints for eight devices."""


def find_tool(name: str) -> str | None:
    """Return the path of a tool in PATH, or the one that is named with a folder; None where there is none.

    Entries that are not absolute are left out: they name the working folder, in which anybody may have put the tool.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, folders)))


def run_tool(
    argv: list[str], *, timeout_s: float = 20.0, environ: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Return exit code and output of a tool, or -1 and why it has none; no code: it did not answer in time.

    A tool that waits inside a driver (state D) cannot be killed, and ``subprocess.run`` would wait for it forever.
    ``environ``: its environment; None: that of this process.
    """
    try:
        tool = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environ,
        )
    except OSError as error:
        return -1, str(error)
    deadline = time.monotonic() + timeout_s
    try:
        said = _read(tool, deadline)
        if len(said) > _MOST_BYTES:
            _end(tool)
            return -1, f"it printed more than {_MOST_BYTES >> 20} MiB"
        code = tool.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(tool)
        return None, ""
    assert tool.stdout is not None
    tool.stdout.close()
    return code, said.decode(errors="replace").replace("\r\n", "\n")


def _read(tool: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return the output, and at most one piece more than is allowed. Raises TimeoutExpired."""
    assert tool.stdout is not None
    poller, said = select.poll(), bytearray()
    poller.register(tool.stdout, select.POLLIN)
    while len(said) <= _MOST_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise subprocess.TimeoutExpired(tool.args, left_s)
        piece = os.read(tool.stdout.fileno(), 1 << 16)
        if not piece:
            break
        said += piece
    return bytes(said)


def _end(tool: subprocess.Popen[bytes]) -> None:
    assert tool.stdout is not None
    tool.stdout.close()
    kill_group(tool)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its process group, and everything that it started.

    If it does not end soon, a thread reaps it whenever it does, and delays nothing.
    """
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    reaper = threading.Thread(target=process.wait, name=f"reaper of process {process.pid}", daemon=True)
    try:
        reaper.start()
    except RuntimeError:  # this user may start no other thread
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_TIMEOUT_S)
    else:
        reaper.join(_KILL_TIMEOUT_S)
