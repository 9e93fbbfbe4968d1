"""The mount table of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the mount table."""

    number: str
    """Its number, which ``start.mount_of`` returns for an open file on it."""
    device: str
    """The device number of the file system, ``MAJOR:MINOR``: the same for all of its mounts on this machine."""
    root: str
    """The directory of the file system that is visible at ``point``."""
    point: str
    kind: str
    """Type of the file system: ``ext4``, ``nfs4``, ``cgroup2``."""
    source: str
    """The device, ``server:/export``, or any word, as the user who mounted it gave it."""
    options: tuple[str, ...]
    """Options of the file system, not of this mount."""


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """Return the mounts in the order in which they were made; empty where there is no table (macOS)."""
    try:
        # As bytes: in a name of a folder the kernel leaves a carriage return as it is, which ends no line.
        lines = (proc / "self/mountinfo").read_bytes().decode(errors="surrogateescape").split("\n")
    except OSError:
        return []
    table = []
    for line in lines:
        # id parent dev root point options [optional ...] - type source options
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) >= 5 and kind[0]:
            options = tuple(kind[2].split(",")) if len(kind) > 2 else ()
            root, point = _plain(fields[3]), _plain(fields[4])
            source = _plain(kind[1]) if len(kind) > 1 else ""
            table.append(
                Mount(
                    number=fields[0],
                    device=fields[2],
                    root=root,
                    point=point,
                    kind=kind[0],
                    source=source,
                    options=options,
                )
            )
    return table


def _plain(text: str) -> str:
    """Return text with octal escapes decoded: the kernel writes blanks and the like as escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
