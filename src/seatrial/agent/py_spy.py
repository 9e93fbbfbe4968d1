"""py-spy, which shows the stack of a script; only one that no other user can have put there is ever run.

An agent may be root, and the script's folder or an entry of PATH may belong to the user whose script it is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.start import way_to
from seatrial.util.text import printable

_NAME = "py-spy"
_LIST = re.compile(r"^\[(?=\s*[{\]])", re.MULTILINE)
"""The beginning of a list of threads; lines of a log begin with ``[2026-``."""
_MOST_STARTS = 16
"""Lines that are tried: each is read to its end."""
_DECODER = json.JSONDecoder()
_ERROR = re.compile(
    r"^(?:(?:Error|error|Reason|Permission Denied): .*|It looks like you are running in .*|Caused by:(?:\n    .*)+"
    # What ``run_tool`` says in its place.
    r"|\[Errno \d+\] .*|it printed more than .*)",
    re.MULTILINE,
)


def find(program: str, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the path of a py-spy to run, and without one the sentence why one that was found is not run.

    It is looked for beside the Python that runs this agent, which is trusted already, beside the rank's interpreter,
    and in PATH. Entries that are not absolute name the working folder and are left out.

    Args:
        program: path of the rank's interpreter.
        environ: variables of the agent.
    """
    own = os.path.join(os.path.dirname(sys.executable), _NAME)
    if os.path.isabs(own) and os.path.isfile(own) and os.access(own, os.X_OK):
        return own, ""
    refused = ""
    for folder in (os.path.dirname(program), *environ.get("PATH", os.defpath).split(os.pathsep)):
        path = os.path.join(folder, _NAME)
        if not os.path.isabs(path):
            continue
        with contextlib.suppress(OSError):
            found, others = _looked_at(path)
            if found and others is None:
                return found, ""
            if found:
                refused = refused or f"{path} was not run: other users may change {others}"
    return None, refused


def _looked_at(path: str) -> tuple[str, str | None]:
    """Return the path without links in it, and the first part that a user other than root and this one can change.

    An empty path: it cannot be executed. Of the file system of another user nothing is asked, who may answer nothing.
    """
    found, others = "", None
    for name, fd, mounter, is_last, _ in way_to(path):
        if mounter:
            return name, others or name
        status = os.fstat(fd)
        # Nobody can rename what others own in a sticky folder, and the mode of a link means nothing.
        fixed = stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)
        is_open = not fixed and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_open or status.st_uid not in (0, os.geteuid()):
            others = others or name
        if is_last and stat.S_ISREG(status.st_mode) and os.access(f"/proc/self/fd/{fd}", os.X_OK):
            found = name
    return found, others


def threads(code: int | None, said: str) -> str:
    """Return the threads and frames, as ``py-spy dump`` writes them for people, from what it said with ``--json``.

    Of its list only these fields pass: for people it writes the command line, whose arguments may hold secrets, and a
    site's own may add local variables. Without a list its errors pass, known by their first words.

    Args:
        code: its exit code; None: it did not answer in time.
        said: what it wrote to both outputs, such as a log before the list.
    """
    for start in itertools.islice(_LIST.finditer(said), _MOST_STARTS):
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError):
            found, _ = _DECODER.raw_decode(said, start.start())
            # The main thread is the last one there.
            return "".join(f"{line}\n" for thread in reversed(found) for line in _lines(thread))
    errors = "".join(f"{words}\n" for words in _ERROR.findall(said))
    return errors or ("" if code is None else f"it showed no stack, and ended with exit code {code}\n")


def _lines(thread: dict[str, Any]) -> Iterator[str]:
    number = _number(thread, "os_thread_id") or f"0x{_number(thread, 'thread_id'):X}"
    name = _word(thread, "thread_name")
    state = "idle" if not thread.get("active") else "active+gil" if thread.get("owns_gil") else "active"
    yield f"Thread {number} ({state})" + (f': "{name}"' if name else "")
    for frame in thread["frames"]:
        file = _word(frame, "short_filename") or _word(frame, "filename")
        line = _number(frame, "line")
        yield f"    {_word(frame, 'name')} ({file}{f':{line}' if line else ''})"


def _word(of: dict[str, Any], field: str) -> str:
    value = of.get(field)
    return printable(value) if isinstance(value, str) else ""


def _number(of: dict[str, Any], field: str) -> int:
    value = of.get(field)
    return value if isinstance(value, int) else 0
