"""A file system of another user in which all files look like those of whoever shall trust them. Needs root and FUSE.

It is what ``fusermount3 -o allow_other`` mounts for that user, where /etc/fuse.conf permits that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NEIGHBOR = 10002
CONTENT = b"the neighbor knows this secret, and all of its characters"
_FILE, _FOLDER = 2, 1
_LOOKUP, _FORGET, _GETATTR, _MKDIR, _OPEN, _READ, _INIT, _OPENDIR, _CREATE = 1, 2, 3, 9, 14, 15, 26, 27, 35
_ENOENT, _EEXIST, _ENOSYS = 2, 17, 38


@contextlib.contextmanager
def mounted(folder: Path, *, shown_owner: int, name: str) -> Iterator[None]:
    """Mount it at a folder while the block lasts. Its only file has CONTENT. Skips the test without FUSE."""
    with _served(folder, str(shown_owner), name):
        yield


@contextlib.contextmanager
def mounted_and_unasked(place: Path) -> Iterator[None]:
    """Mount one that answers nothing at a folder or a file while the block lasts, in which nothing must ask it."""
    with _served(place) as server:
        yield
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.3)
        assert server.poll() is None, "it was asked"


@contextlib.contextmanager
def _served(place: Path, *shown: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, str(place), *shown]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no FUSE here: {server.stderr.read()[-200:]}")
        yield server
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
        server.kill()
        server.wait()
        server.stdout.close()
        server.stderr.close()


def _attributes(node: int, owner: int) -> bytes:
    mode, size = (0o40700, 4096) if node == _FOLDER else (0o100600, len(CONTENT))
    return struct.pack("<6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, owner, owner, 0, 4096, 0)


def _serve(fd: int, owner: int | None, name: bytes) -> None:
    while True:
        request = os.read(fd, 1 << 18)
        operation, unique, node = struct.unpack("<IQQ", request[4:24])
        if owner is None and operation != _INIT:
            return  # The one who asked gets an error, and need not wait for ever.
        body, answer, error = request[40:], b"", 0
        if operation == _INIT:
            answer = struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 16, 12, 1 << 17, 1, 0, 0, *[0] * 8)
        elif operation == _GETATTR:
            answer = struct.pack("<QQ", 1, 0) + _attributes(node, owner or 0)
        elif operation == _LOOKUP and body.rstrip(b"\0") == name:
            answer = struct.pack("<5Q", _FILE, 0, 1, 1, 0) + _attributes(_FILE, owner or 0)
        elif operation == _MKDIR:
            answer = struct.pack("<5Q", _FOLDER + 2, 0, 1, 1, 0) + _attributes(_FOLDER, owner or 0)
        elif operation in (_OPEN, _OPENDIR):
            answer = struct.pack("<QQ", 1, 0)
        elif operation == _READ:
            offset, size = struct.unpack("<QI", body[8:20])
            answer = CONTENT[offset : offset + size]
        else:
            error = {_LOOKUP: _ENOENT, _CREATE: _EEXIST}.get(operation, _ENOSYS)
        if operation != _FORGET:
            os.write(fd, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)


def main(place: str, owner: str | None = None, name: str = "") -> None:
    """Mount as fusermount does, then go on as the neighbor."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    mode = "40000" if os.path.isdir(place) else "100000"
    options = f"fd={fd},rootmode={mode},user_id={NEIGHBOR},group_id={NEIGHBOR},allow_other"
    # The name of the source is the neighbor's to choose.
    if ctypes.CDLL(None).mount(b"x,user_id=0", place.encode(), b"fuse", 6, options.encode()):
        sys.exit("mount failed")
    os.setgroups([])
    os.setresgid(NEIGHBOR, NEIGHBOR, NEIGHBOR)
    os.setresuid(NEIGHBOR, NEIGHBOR, NEIGHBOR)
    print("mounted", flush=True)
    with contextlib.suppress(OSError):  # unmounted
        _serve(fd, None if owner is None else int(owner), name.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
