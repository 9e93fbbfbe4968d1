"""Record the events of a run: in memory, and in a file as long as the disk takes them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from seatrial.environment.secret_variable import take_secret
from seatrial.errors import RequestError
from seatrial.files import create, open_to_append, remove
from seatrial.folders import make_folder, make_folders
from seatrial.protocol.events import EndEvent, NoteEvent, Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import encode
from seatrial.report.recorded_events import RECORD
from seatrial.util.disk_writer import DiskWriter

_MOST_BYTES = 1 << 30
"""Bytes that wait for the disk: they are in memory as events, too."""
_LAST_WRITE_S = 60.0
"""Time for the disk to take the rest at the end."""


def new_folder(out: Path) -> tuple[str, Path]:
    """Create the folder of a new run and return its name and path. Raises RequestError when it cannot be written."""
    # A pod takes part in a run of a controller outside the cluster, and is given its name.
    run = os.environ.get("SEATRIAL_LIVE") or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = out / run
    try:
        make_folders(out)
        make_folder(folder)
        probe = folder / ".writable"
        with create(probe, run_folder=True) as file:
            file.write(b"seatrial")
        remove(probe, run_folder=True)
    except OSError as error:
        raise RequestError(
            f"--out {out}: reports cannot be written there ({error.strerror or error}); name another folder with --out."
        ) from error
    return run, folder


class Recorder:
    """Records each event that it is called with. If the file cannot take them all, a note among the events says so."""

    def __init__(self, run: str, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.path = folder / RECORD
        # Ranks on this host could read it in /proc, and with it prove lines of this log or be another node.
        self._token = take_secret("SEATRIAL_TOKEN") or ""
        self._run = run
        self._num_notes = 0
        self._num_sent = 0
        self._is_complete, self._is_closed = True, False
        try:
            open_to_append(self.path, run_folder=True).close()
        except OSError as error:
            raise RequestError(
                f"the events cannot be written to {self.path} ({error.strerror or error}); name another folder with"
                " --out."
            ) from error
        # Agents that hear nothing for 30 s end their ranks, and the disk may take longer: it is waited for in a thread.
        self._disk = DiskWriter()
        self._file = self._disk.open(str(self.path), lambda gap_bytes: b"\n", _MOST_BYTES, syncs=True)

    def __call__(self, event: dict[str, Any]) -> None:
        """Record an event, or raise ValueError for one that nobody could read again (``wire.encode``)."""
        lines = encode(event)
        self.send(event)
        self.events.append(event)
        if self._is_complete:
            self._disk.write(self._file, b"".join(lines))
            self._note_lack()

    def send(self, message: dict[str, Any]) -> None:
        """Print the message with its number and a proof where a controller outside the cluster reads this pod's log.

        Raises ValueError, and gives out no number, for a message that is too large or too deep to be read there.
        """
        if "SEATRIAL_LIVE" in os.environ:
            signature = proof(self._token, "log", json.dumps(message), "", self._num_sent)
            numbered = {"number": self._num_sent, "proof": signature, "message": message}
            lines = encode(numbered)
            # The controller notices a line that could not be written by the gap in the numbers.
            self._num_sent += 1
            with contextlib.suppress(OSError, ValueError):
                # One write a line: in a pipe, longer ones may be mixed with what other threads write.
                for line in lines:
                    sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    def note(self, text: str, *, is_request: bool = False) -> None:
        """Add an error of seatrial to the events, after ``close`` too: without its evidence a trial cannot PASS.

        ``is_request``: the request was wrong.
        """
        self._num_notes += 1
        source = Source(self._run, f"recorder{self._num_notes}")
        note = NoteEvent(kind="note", severity="error", text=text)
        if is_request:
            note["cause"] = "request"
        added = [source.event(note), source.event(EndEvent(kind="end"))]
        self.events += added
        for event in added:
            self.send(event)
        # A later judgment of the file must give the same verdict. A file that takes no more lacks an end anyway.
        # The newline ends a line that may have been cut.
        lines = b"\n" + b"".join(line for event in added for line in encode(event))
        # A disk that has not answered by then may never do so, and only its thread waits for it.
        if not (self._is_closed and self._disk.end(time.monotonic())):
            self._disk.write(self._file, lines)
            return
        with contextlib.suppress(OSError), open_to_append(self.path, run_folder=True) as file:
            file.write(lines)
            os.fsync(file.fileno())

    def close(self) -> None:
        """Write the file to disk, before the verdict is printed."""
        self._is_closed = True
        self._disk.close(self._file)
        silent = not self._disk.end(time.monotonic() + _LAST_WRITE_S)
        self._note_lack(f"the disk has not answered for {self._disk.silent_s():.0f} s" if silent else "")

    def _note_lack(self, error: str = "") -> None:
        """Note once that the file lacks events. ``error``: why, unless the disk says it."""
        error = self._file.error or error or ("too much waits for the disk" if self._file.missing_bytes else "")
        if error and self._is_complete:
            self._is_complete = False
            self.note(f"the events cannot be written to {self.path} ({error}); free space there")
