"""The first program on a host that ssh reaches. It is sent as text, after the start script (``start.py``).

Standard input brings one line of JSON, then the bundle, then the messages of the conductor. The program keeps the
bundle in memory, starts the module that the JSON names, and passes messages on in both directions. The end of standard
input means that the controller is gone; the agent is ended then.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

_END_S = 12.0
_KILL_S = 4.0
_SURVEY_S = 60.0
_FLUSH_S = 5.0
_FROZEN_S = 30.0
"""An agent that takes nothing for so long is stopped, and lost to the conductor already."""
_MAX_UNSENT_BYTES = 1 << 20


def receive_bundle(
    stream: BinaryIO,
    copy_in_memory: Callable[[bytes, str, str], int],
    trusted_users: Callable[[bool, list[int]], set[int]],
    way_to: Callable[[str], Iterator[tuple[str, int, int, bool, bool]]],
    absolute_entries: Callable[[Mapping[str, str]], dict[str, str]],
) -> int:
    """Receive the bundle, run the module that the first line names, and return its exit code.

    ``stream``: standard input, unbuffered. The others are the functions of ``start.py``.
    """
    header = json.loads(stream.readline())
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        signal.signal(number, lambda *_, code=code: sys.exit(code))
    copy = copy_in_memory(_read(stream, header["size"]), header["sha256"], "that came by ssh")
    argv = [sys.executable, f"/proc/self/fd/{copy}", "-m", *header["module"]]
    environ = {**os.environ, **header["env"]}
    # An empty or relative entry would mean the home folder, and then the folder of the run.
    environ |= absolute_entries(environ)
    if "folder" not in header:
        return subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, timeout=_SURVEY_S, check=False, pass_fds=[copy]
        ).returncode
    _enter(header["folder"], trusted_users, way_to)
    return _run_agent(argv, environ, header.get("devices"), copy)


def _enter(
    folder: dict[str, Any],
    trusted_users: Callable[[bool, list[int]], set[int]],
    way_to: Callable[[str], Iterator[tuple[str, int, int, bool, bool]]],
) -> None:
    """Enter the folder in which the user typed, unless another user could have put files into it here.

    Relative paths mean the same as on the controller where this folder is shared; else in the home folder, where this
    process is. ``folder``: its path, its other owners, who has mounted it and its path again where all users can write
    to it, on the controller. As it is trusted there, it is trusted here; nothing asks a file system of another user.
    The agent looks closer, and says what it finds, before it starts a program there
    (``environment/working_folder.py``).
    """
    with contextlib.suppress(OSError):
        for _, fd, mounter, is_last, is_below_open in way_to(folder["path"]):
            if mounter not in (0, *folder["mounters"]):
                return
            status, is_link = os.fstat(fd), stat.S_ISLNK(os.fstat(fd).st_mode)
            if not is_link and not (is_last and stat.S_ISDIR(status.st_mode)):
                continue
            # Its path as it is now: who can exchange a link on the way must not have another folder looked at.
            place = os.readlink(f"/proc/self/fd/{fd}")
            is_open = not is_link and status.st_mode & 0o002 and place not in folder["open_places"]
            if is_open or status.st_uid not in trusted_users(is_below_open, folder["owners"]):
                return
            if not is_link:
                os.fchdir(fd)


def _read(stream: BinaryIO, size_bytes: int) -> bytes:
    """Return ``size_bytes``, or fewer where the connection ends early, which the SHA-256 detects."""
    content = b""
    while len(content) < size_bytes:
        piece = stream.read(size_bytes - len(content))
        if not piece:
            break
        content += piece
    return content


def _run_agent(argv: list[str], environ: dict[str, str], devices: Any, copy: int) -> int:
    """Run the agent until it ends or the connection does. Return its exit code, 128 + N after signal N.

    ``devices``: as for ``share_of_devices`` where several nodes share this host, else None. ``copy``: the descriptor of
    the bundle.
    """
    if devices is not None:
        environ.update(share_of_devices(devices, environ))
    ours, theirs = socket.socketpair()
    with theirs:
        environ["SEATRIAL_CONTROL"] = f"fd:{theirs.fileno()}"
        agent = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[copy, theirs.fileno()],
            start_new_session=True,
        )
    try:
        with ours:
            _relay(ours)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_END_S)
    finally:
        # Unless the agent has ended, its guardian ends it now with all that it has started (agent/guardian.py).
        agent.send_signal(signal.SIGALRM)
        try:
            code = agent.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            code = agent.wait()
    return code if code >= 0 else 128 - code


def share_of_devices(devices: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that gives a node its share of the devices that are visible here.

    ``devices``: (variables, first, last); the first variable that is set counts, and the share is a part of its list.
    """
    names, first, last = devices
    name = next((name for name in names if environ.get(name)), names[0])
    visible = environ.get(name)
    indices = visible.split(",") if visible else [str(index) for index in range(last)]
    return {name: ",".join(indices[first:last])}


def _relay(agent: socket.socket) -> None:
    """Relay in both directions until the agent closes its end or freezes, or for a while after standard input ends."""
    os.set_blocking(1, False)
    agent.settimeout(_FROZEN_S)
    # The newline ends an unfinished line that a login script has printed.
    unsent = b"\n"
    input_open = agent_open = True
    until = float("inf")
    while (agent_open or unsent) and time.monotonic() < until:
        reads: list[Any] = [0] if input_open else []
        reads += [agent] if agent_open and len(unsent) < _MAX_UNSENT_BYTES else []
        ready, writable, _ = select.select(reads, [1] if unsent else [], [], 1.0)
        if 0 in ready:
            piece = os.read(0, 1 << 16)
            input_open = bool(piece)
            try:
                agent.sendall(piece) if piece else agent.shutdown(socket.SHUT_WR)
            except TimeoutError:
                return
            except OSError:
                pass
            if not input_open:
                until = min(until, time.monotonic() + _END_S)
        if agent in ready:
            try:
                piece = agent.recv(1 << 16)
            except OSError:
                piece = b""
            unsent += piece
            agent_open = bool(piece)
            if not agent_open:
                until = min(until, time.monotonic() + _FLUSH_S)
        if writable:
            try:
                unsent = unsent[os.write(1, unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                return
