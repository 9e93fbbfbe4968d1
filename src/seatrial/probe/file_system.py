"""What kind of file system a folder is on, and how much is free there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from seatrial.probe.mounts import mounts

__all__ = ["FileSystem", "file_system"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Of one folder."""

    kind: str
    """As the mount table has it: ``ext4``, ``nfs4``, ``tmpfs``; empty where there is no table (macOS)."""
    mount_point: str
    free_bytes: int
    """For who is not root, where some is kept for root. A quota may allow less; it is not seen here."""
    free_inodes: int | None
    """None: this file system does not count them."""

    @property
    def in_memory(self) -> bool:
        """Whether it is memory, not storage."""
        return self.kind in ("tmpfs", "ramfs", "devtmpfs")


def file_system(folder: str, proc_root: Path = Path("/proc")) -> FileSystem:
    """Look at a folder. Raises OSError; may hang for as long as its file system does."""
    place = os.path.realpath(folder)
    found = os.statvfs(place)
    kind, mount_point = _mount(place, proc_root)
    return FileSystem(
        kind=kind,
        mount_point=mount_point,
        free_bytes=found.f_bavail * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
    )


def _mount(place: str, proc_root: Path) -> tuple[str, str]:
    """Type and mount point."""
    best = ("", "")
    for mount in mounts(proc_root):
        inside = place == mount.point or place.startswith(mount.point.rstrip("/") + "/")
        # Of two mounts at one point the later one is seen.
        if inside and len(mount.point) >= len(best[1]):
            best = mount.kind, mount.point
    return best
