"""A folder at which automount waits, as for `x-systemd.automount` in /etc/fstab. Needs root and autofs."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME, CONTENT = "node0.events", b"content"
_READY = 0x9360
"""AUTOFS_IOC_READY."""


@contextlib.contextmanager
def awaiting(folder: Path) -> Iterator[None]:
    """Let automount wait at a folder while the block lasts, to mount one with a file. Skips the test without autofs."""
    command = [sys.executable, __file__, str(folder)]
    daemon = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    try:
        if daemon.stdout.readline() != "awaiting\n":
            pytest.skip(f"no autofs here: {daemon.stderr.read()[-200:]}")
        yield
    finally:
        for _ in range(2):
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()
        daemon.stderr.close()


def _mount(kind: bytes, folder: str, options: str) -> None:
    if ctypes.CDLL(None, use_errno=True).mount(b"none", folder.encode(), kind, 0, options.encode()):
        sys.exit(f"mount failed: {os.strerror(ctypes.get_errno())}")


def main(folder: str) -> None:
    """Be the daemon. What its process group asks starts no automount."""
    requests, theirs = os.pipe()
    _mount(b"autofs", folder, f"fd={theirs},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct")
    root = os.open(folder, os.O_RDONLY)
    print("awaiting", flush=True)
    while request := os.read(requests, 512):
        (token,) = struct.unpack("<8xI", request[:12])
        _mount(b"tmpfs", folder, "")
        Path(folder, NAME).write_bytes(CONTENT)
        fcntl.ioctl(root, _READY, token)


if __name__ == "__main__":
    main(*sys.argv[1:])
