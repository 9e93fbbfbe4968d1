"""Disks that are soon full: file systems in memory. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["made_disk"]


@contextlib.contextmanager
def made_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """One of so many bytes, in a new folder below this one."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        # With -l: who wrote to it may not have ended.
        subprocess.run(["umount", "-l", str(disk)], check=True)
