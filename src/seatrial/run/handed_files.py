"""The files of ``--evidence``: read once, where they were typed, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from seatrial.devices.handed import MOST_BYTES, HandedFile, read
from seatrial.devices.plain_json import to_json
from seatrial.errors import RequestError
from seatrial.files import read_input
from seatrial.protocol.events import EndEvent, HandedEvent, Source


def read_evidence(words: Collection[str]) -> tuple[HandedFile, ...]:
    """Return what each file says, for ``FILE`` or ``NODE=FILE``. Raises RequestError for one that cannot be opened.

    No file system is asked which of them it is: others may have made what has the whole name.
    """
    files = list[HandedFile]()
    for word in words:
        before, sign, after = word.partition("=")
        node, name = (before, after) if before and sign and "/" not in before else ("", word)
        try:
            handed = read(read_input(name, MOST_BYTES), name=Path(name).name, node=node)
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise RequestError(f"--evidence {word}: {name} cannot be read ({reason}).") from error
        if (handed.sha256, handed.node) not in [(other.sha256, other.node) for other in files]:
            files.append(handed)
    return tuple(files)


def events_of(run: str, files: Collection[HandedFile]) -> Iterator[dict[str, Any]]:
    """Yield the events that keep the files with the run, each file from a separate source."""
    for handed in files:
        source = Source(run, f"handed.{handed.key()}")
        yield source.event(HandedEvent(kind="handed", file=to_json(handed)))
        yield source.event(EndEvent(kind="end"))
