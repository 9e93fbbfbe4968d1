"""Keeping what was measured: every event in memory and, as long as the disk takes it, in a file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.verdict.events import Source
from seatrial.verdict.wire import encode

__all__ = ["Recorder", "keep_log", "new_folder"]


_LOG_CHARS = 1 << 18


def new_folder(out: Path) -> tuple[str, Path]:
    """Make the folder of a new run, never one that exists. Raises RequestError when it cannot be written."""
    run = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = out / run
    try:
        folder.mkdir(parents=True)
        probe = folder / ".writable"
        probe.write_bytes(b"seatrial")
        probe.unlink()
    except OSError as error:
        raise RequestError(
            f"--out {out}: reports cannot be written there ({error.strerror or error}); name another folder with --out."
        ) from error
    return run, folder


def keep_log(folder: Path, message: Mapping[str, Any], world_size: int) -> None:
    """What a rank elsewhere has printed last, as its agent sends it. A file that is there stays as it is.

    Raises what a message that makes no sense raises.
    """
    name, text = message["name"], message["text"][:_LOG_CHARS]
    told = re.fullmatch(r"rank([0-9]{1,6})\.gen[0-9]{1,6}\.log", name)
    if told is None or int(told[1]) >= world_size:
        raise ValueError(f"{name!a} is no name of a log of this run")
    with contextlib.suppress(OSError), open(folder / name, "xb") as file:
        file.write(text.encode(errors="replace"))


class Recorder:
    """Callable with each event. A file that cannot take them all is told by an event of our own."""

    def __init__(self, run: str, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.path = folder / "controller.events"
        self._run = run
        self._notes = 0
        self._whole = True
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if not self._whole:
            return
        try:
            for line in encode(event):
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._broken(error)

    def note(self, text: str) -> None:
        """Add a trouble of our own to the events, after ``close`` too: a PASS whose evidence was not kept is none."""
        self._notes += 1
        source = Source(self._run, f"recorder{self._notes}")
        told = [source.event("note", severity="error", text=text), source.event("end")]
        self.events += told
        # Whoever judges the file again must come to the same verdict. Where it takes no more, it lacks an end anyway.
        with contextlib.suppress(OSError), open(self.path, "ab", buffering=0) as file:
            # The line before may have been cut.
            file.write(b"\n" + b"".join(line for event in told for line in encode(event)))
            os.fsync(file.fileno())

    def close(self) -> None:
        """On the disk before the verdict is told."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._broken(error)
        self._file.close()

    def _broken(self, error: OSError) -> None:
        if self._whole:
            self._whole = False
            self.note(f"the events cannot be kept in {self.path} ({error.strerror or error}); free space there")
