"""The runs beside this one, in the folder of ``--out``, that limits can come from together with it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.files import status_of_entry
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.report.disturbance import cpu_shortage
from seatrial.report.plan_of_runs import refuse_unlike
from seatrial.report.recorded_events import event_files, read_events
from seatrial.start import status_of

_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_MOST_RUNS = 20
"""The newest ones, which are judged again."""
_MOST_BYTES = 16 << 20
"""Bytes of events in all of them: a card must not keep a reader waiting."""


def runs_for_limits(conclusion: Conclusion, folder: Path) -> list[Path]:
    """Return the folders of earlier runs that ``plan from`` takes with this one, oldest first.

    ``folder``: that of this run. Runs of more events than ``_MOST_BYTES`` are left out.
    """
    found: list[Path] = []
    bytes_left = _MOST_BYTES
    try:
        others = [
            other for other in folder.parent.iterdir() if _RUN.fullmatch(other.name) and other.name != folder.name
        ]
        for other in sorted((other for other in others if _is_own(other)), reverse=True)[:_MOST_RUNS]:
            size = sum(status_of_entry(file, other.parent).st_size for file in event_files(other, other.parent))
            if 0 < size <= bytes_left:
                bytes_left -= size
                if _is_such(conclusion, other):
                    found.append(other)
    except OSError:
        pass
    return found[::-1]


def _is_own(folder: Path) -> bool:
    """Return whether this user made the folder: in a shared one, a neighbor would choose our limits by his runs."""
    try:
        status = status_of(folder)
    except OSError:  # A neighbor has mounted a file system there, or has removed the folder meanwhile.
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_such(conclusion: Conclusion, folder: Path) -> bool:
    try:
        messages, damaged = read_events((folder,))
        other = conclude(messages, damaged=damaged)
        refuse_unlike([other, conclusion])
    except RequestError:
        return False
    return other.trial.run != conclusion.trial.run and not cpu_shortage(other)
