"""The things that another user can put where a file of ours is expected."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

SECRET = b"a file of the victim"


def victim(path: Path) -> Path:
    """Return a file that nobody may change, beside the folder of the path; the first call makes it."""
    file = path.parent.parent / "victim"
    if not file.exists():
        file.write_bytes(SECRET)
        file.chmod(0o600)
    return file


def _socket(path: Path) -> None:
    folder = os.getcwd()
    os.chdir(path.parent)  # the path of a socket may have 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(folder)


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "link": (lambda path: path.symlink_to(victim(path)), "a symbolic link"),
    "dangling": (lambda path: path.symlink_to(path.parent.parent / "made"), "a symbolic link"),
    "loop": (lambda path: path.symlink_to(path), "a symbolic link"),
    "hard link": (lambda path: path.hardlink_to(victim(path)), "a file with 2 names"),
    "FIFO": (lambda path: os.mkfifo(path), "a FIFO"),
    "folder": (lambda path: path.mkdir(), "a folder"),
    "socket": (_socket, "a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
}
"""Kind -> a function that puts one at a path, and what a refusal calls it."""


def assert_unharmed(path: Path) -> None:
    """Check that nothing was written through what was planted at the path."""
    assert victim(path).read_bytes() == SECRET
    assert victim(path).stat().st_mode & 0o777 == 0o600
    assert not (path.parent.parent / "made").exists()
