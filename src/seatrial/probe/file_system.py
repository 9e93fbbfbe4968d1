"""The kind of file system that a folder is on, and its free space."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from seatrial.probe.mounts import mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The file system of one folder."""

    kind: str
    """Type in the mount table: ``ext4``, ``nfs4``, ``tmpfs``; empty where there is no table (macOS)."""
    mount_point: str
    free_bytes: int
    """Free space for users other than root. A quota may allow less and is not visible here."""
    free_inodes: int | None
    """Inodes for users other than root; None: this file system does not count them."""

    @property
    def in_memory(self) -> bool:
        """Whether it is in memory, not on storage."""
        return self.kind in ("tmpfs", "ramfs", "devtmpfs")


def file_system(folder: str, proc_root: Path = Path("/proc")) -> FileSystem:
    """Return the file system of a folder. Raises OSError; blocks for as long as that file system does."""
    path = os.path.realpath(folder)
    status = os.statvfs(path)
    kind, mount_point = _mount(path, proc_root)
    return FileSystem(
        kind=kind,
        mount_point=mount_point,
        free_bytes=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
    )


def _mount(path: str, proc_root: Path) -> tuple[str, str]:
    """Return type and mount point."""
    best = ("", "")
    for mount in mounts(proc_root):
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # Of two mounts at one point, the later one hides the earlier.
        if inside and len(mount.point) >= len(best[1]):
            best = mount.kind, mount.point
    return best
