"""Tools of a driver: they may wait inside it forever, and must not hold us up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading

_KILL_TIMEOUT_S = 2.0


def find_tool(name: str) -> str | None:
    """Return the path of a tool in PATH; None where there is none.

    Entries that are not absolute are left out: they name the working folder, in which anybody may have put the tool.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, folders)))


def run_tool(argv: list[str], *, timeout_s: float = 20.0) -> tuple[int | None, str]:
    """Return exit code and output of a tool; no code: it did not answer in time.

    A tool that waits inside a driver (state D) cannot be killed, and ``subprocess.run`` would wait for it forever.
    """
    try:
        tool = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return -1, str(error)
    try:
        text, _ = tool.communicate(timeout=timeout_s)
        return tool.returncode, text
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        assert tool.stdout is not None
        tool.stdout.close()
        # If it does not end now, the thread reaps it whenever it does, and delays nothing.
        reaper = threading.Thread(target=tool.wait, name=f"reaper of {argv[0]}", daemon=True)
        reaper.start()
        reaper.join(_KILL_TIMEOUT_S)
        return None, ""
