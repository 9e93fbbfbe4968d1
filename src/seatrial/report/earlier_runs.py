"""The runs beside this one, in the folder of ``--out``, that limits can come from together with it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.files import names_in, owner_in, statuses_in
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.report.disturbance import cpu_shortage
from seatrial.report.plan_of_runs import refuse_unlike
from seatrial.report.recorded_events import event_files, read_events
from seatrial.start import open_named_folder

_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_MOST_NAMES = 2000
"""The newest ones, whose owners are looked at. A neighbor can make as many as the disk takes, and a file server of the
network answers for a thousand in a second."""
_MOST_RUNS = 20
"""The newest ones, which are judged again."""
_MOST_BYTES = 16 << 20
"""Bytes of events in all of them: a card must not keep a reader waiting."""
_FILE_BYTES = 16 << 10
"""Bytes that can be read in the time in which one more file is opened."""


def runs_for_limits(conclusion: Conclusion, folder: Path) -> list[Path]:
    """Return the folders of earlier runs that ``plan from`` takes with this one, oldest first.

    ``folder``: that of this run. Runs of more events than ``_MOST_BYTES`` are left out.
    """
    found: list[Path] = []
    bytes_left = _MOST_BYTES
    with contextlib.suppress(OSError):
        opened = open_named_folder(folder.parent)
        try:
            # Another user may exchange the folder of all runs meanwhile.
            for other in islice(_own_runs(Path(f"/proc/self/fd/{opened}", folder.name)), _MOST_RUNS):
                size = sum(max(_FILE_BYTES, status.st_size) for status in event_files(other, other.parent).values())
                if 0 < size <= bytes_left:
                    bytes_left -= size
                    if _is_such(conclusion, other):
                        found.append(folder.parent / other.name)
        finally:
            os.close(opened)
    return found[::-1]


def _own_runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of other runs that this user made, the newest first: in a shared one, a neighbor would choose
    our limits by his runs."""
    out = folder.parent
    owners = {os.geteuid()}
    with contextlib.suppress(OSError):  # The report is in no folder of ours.
        owners.add(owner_in(folder))
    names = sorted((name for name in names_in(out) if _RUN.fullmatch(name) and name != folder.name), reverse=True)
    for name, status in statuses_in(out, names[:_MOST_NAMES]):
        if stat.S_ISDIR(status.st_mode) and status.st_uid in owners:
            yield out / name


def _is_such(conclusion: Conclusion, folder: Path) -> bool:
    try:
        messages, damaged = read_events((folder,), folder.parent)
        other = conclude(messages, damaged=damaged)
        refuse_unlike([other, conclusion])
    except RequestError:
        return False
    return other.trial.run != conclusion.trial.run and not cpu_shortage(other)
