"""What runs first on a host that is reached by ssh. It is sent as text and needs nothing but a Python 3.7.

On standard input comes a line of JSON, then the file that travels, then the words of the conductor. It keeps the file
in a private folder, starts what it was told, passes on both ways, and removes the folder whatever happens. When
standard input ends nobody is there any more, and what was started is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, BinaryIO

__all__ = ["land"]

_OLDEST = (3, 10)
_END_S = 12.0
_ASK_S = 60.0
_FLUSH_S = 5.0
_MOST_HELD = 1 << 20
# As probe/own_code.py does it; here nothing of ours can be imported yet.
_WITHOUT_FOLDER = (
    'import sys; del sys.path[: sys.path[:1] == [""]]; import runpy;'
    ' runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def land(stream: BinaryIO) -> int:
    """Do as the line says and return the exit code. ``stream``: standard input, without a buffer."""
    if sys.version_info[:2] < _OLDEST:
        here = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"{sys.executable} is Python {here}, and seatrial needs 3.10 or newer; name a newer one with --python")
    told = json.loads(stream.readline())
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        signal.signal(number, lambda *_, code=code: sys.exit(code))
    folder = os.environ.get("TMPDIR") or "/tmp"
    try:
        folder = tempfile.mkdtemp(prefix="seatrial-")
        path = _keep(stream, folder, told["size"])
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True) if os.path.basename(folder).startswith("seatrial-") else None
        why = error.strerror or error
        sys.exit(f"seatrial cannot be written to {os.path.dirname(folder)} ({why}); free space there, or set TMPDIR")
    try:
        # As probe/own_code.py sets them, and takes them out again for a program that is none of ours.
        safe, before = os.environ.get("PYTHONSAFEPATH") or "seatrial", os.environ.get("PYTHONPATH")
        environ = {**os.environ, "PYTHONSAFEPATH": safe, "PYTHONPATH": os.pathsep.join(filter(None, [path, before]))}
        environ.update(told["env"])
        if "ask" in told:
            argv = [sys.executable, "-c", told["ask"]]
            return subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, timeout=_ASK_S, check=False).returncode
        with contextlib.suppress(OSError):
            # On a shared disk paths mean there what they mean here; elsewhere it stays the home folder.
            os.chdir(told["folder"])
        return _serve(environ, told.get("devices"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(stream: BinaryIO, folder: str, size_bytes: int) -> str:
    path = os.path.join(folder, "seatrial.pyz")
    with open(path, "wb") as file:
        while size_bytes:
            piece = stream.read(min(size_bytes, 1 << 16))
            if not piece:
                raise OSError("the connection ended before all of it had come")
            size_bytes -= file.write(piece)
    return path


def _serve(environ: dict[str, str], devices: Any) -> int:
    if devices is not None:
        # Several nodes share this host: each sees its part of what can be seen here.
        name, first, last = devices
        seen = environ.get(name)
        known = seen.split(",") if seen else [str(index) for index in range(last)]
        environ[name] = ",".join(known[first:last])
    ours, theirs = socket.socketpair()
    with theirs:
        environ["SEATRIAL_CONTROL"] = f"fd:{theirs.fileno()}"
        agent = subprocess.Popen(
            [sys.executable, "-c", _WITHOUT_FOLDER, "seatrial.agent.main"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    try:
        with ours:
            _pass_on(ours)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_END_S)
    finally:
        agent.kill()  # its ranks die with it
        code = agent.wait()
    return code if code >= 0 else 128 - code


def _pass_on(ours: socket.socket) -> None:
    """Both ways until the agent has closed its end, or for a while after standard input has ended."""
    os.set_blocking(1, False)
    # A line of its own, whatever a login script has said before.
    held = b"\n"
    hears = talks = True
    until = float("inf")
    while (talks or held) and time.monotonic() < until:
        reads: list[Any] = [0] if hears else []
        reads += [ours] if talks and len(held) < _MOST_HELD else []
        ready, writable, _ = select.select(reads, [1] if held else [], [], 1.0)
        if 0 in ready:
            piece = os.read(0, 1 << 16)
            hears = bool(piece)
            with contextlib.suppress(OSError):
                ours.sendall(piece) if piece else ours.shutdown(socket.SHUT_WR)
            if not hears:
                until = min(until, time.monotonic() + _END_S)
        if ours in ready:
            try:
                piece = ours.recv(1 << 16)
            except OSError:
                piece = b""
            held += piece
            talks = bool(piece)
            if not talks:
                until = min(until, time.monotonic() + _FLUSH_S)
        if writable:
            try:
                held = held[os.write(1, held) :]
            except BlockingIOError:
                pass
            except OSError:
                return
