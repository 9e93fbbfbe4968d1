"""Small disks: file systems in memory. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def made_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a file system of this size in a new folder below ``folder`` while the block lasts."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        # With -l: a process that wrote to it may not have ended.
        subprocess.run(["umount", "-l", str(disk)], check=True)
