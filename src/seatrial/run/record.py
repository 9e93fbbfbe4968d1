"""Record the events of a run: in memory, and in a file as long as the disk takes them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from seatrial.environment.secret_variable import take_secret
from seatrial.errors import RequestError
from seatrial.files import create, open_to_append
from seatrial.protocol.events import EndEvent, NoteEvent, Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import encode
from seatrial.report.recorded_events import RECORD


def new_folder(out: Path) -> tuple[str, Path]:
    """Create the folder of a new run and return its name and path. Raises RequestError when it cannot be written."""
    # A pod takes part in a run of a controller outside the cluster, and is given its name.
    run = os.environ.get("SEATRIAL_LIVE") or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = out / run
    try:
        folder.mkdir(parents=True)
        probe = folder / ".writable"
        with create(probe, run_folder=True) as file:
            file.write(b"seatrial")
        probe.unlink()
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
        self._is_complete = True
        try:
            self._file = open_to_append(self.path, run_folder=True)
        except OSError as error:
            raise RequestError(
                f"the events cannot be written to {self.path} ({error.strerror or error}); name another folder with"
                " --out."
            ) from error

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.send(event)
        if not self._is_complete:
            return
        try:
            for line in encode(event):
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._fail(error)

    def send(self, message: dict[str, Any]) -> None:
        """Print the message with its number and a proof where a controller outside the cluster reads this pod's log."""
        if "SEATRIAL_LIVE" in os.environ:
            signature = proof(self._token, "log", json.dumps(message), "", self._num_sent)
            numbered = {"number": self._num_sent, "proof": signature, "message": message}
            # The controller notices a line that could not be written by the gap in the numbers.
            with contextlib.suppress(OSError, ValueError):
                # One write a line: in a pipe, longer ones may be mixed with what other threads write.
                for line in encode(numbered):
                    sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            self._num_sent += 1

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
        with contextlib.suppress(OSError), open_to_append(self.path, run_folder=True) as file:
            # The newline ends a line that may have been cut.
            file.write(b"\n" + b"".join(line for event in added for line in encode(event)))
            os.fsync(file.fileno())

    def close(self) -> None:
        """Write the file to disk, before the verdict is printed."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._fail(error)
        self._file.close()

    def _fail(self, error: OSError) -> None:
        if self._is_complete:
            self._is_complete = False
            self.note(f"the events cannot be written to {self.path} ({error.strerror or error}); free space there")
