"""Small disks: file systems in memory, and one that answers nothing. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def made_disk(folder: Path, size_bytes: int, *, freezes: bool = False) -> Iterator[Path]:
    """Mount a file system of this size in a new folder below ``folder`` while the block lasts.

    ``freezes``: one that can be frozen, in a file.
    """
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(disk)]
    if freezes:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        mount = ["mount", "-o", "loop", str(image), str(disk)]
        for command in (["mkfs.ext4", "-q", str(image)], mount):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                pytest.skip(f"{command[0]} cannot be used here")
    else:
        subprocess.run(mount, check=True)
    try:
        yield disk
    finally:
        # With -l: a process that wrote to it may not have ended.
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextlib.contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Have a disk answer no write while the block lasts, as the server of files of a cluster in failover."""
    subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)
