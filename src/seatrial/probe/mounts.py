"""The mount table of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "mounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of it."""

    root: str
    """What of the file system is to be seen at ``point``."""
    point: str
    kind: str
    """``ext4``, ``nfs4``, ``cgroup2``."""
    options: tuple[str, ...]
    """Of the file system, not of this mount."""


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """In the order in which they were made; empty where there is no table (macOS)."""
    try:
        lines = (proc / "self/mountinfo").read_text(errors="surrogateescape").split("\n")
    except OSError:
        return []
    found = []
    for line in lines:
        # id parent dev root point options [optional ...] - type source options
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) >= 5 and kind[0]:
            options = tuple(kind[2].split(",")) if len(kind) > 2 else ()
            found.append(Mount(root=_plain(fields[3]), point=_plain(fields[4]), kind=kind[0], options=options))
    return found


def _plain(text: str) -> str:
    """Blanks and the like stand as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
