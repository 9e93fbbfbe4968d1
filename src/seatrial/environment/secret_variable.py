"""Variables that hold a secret, taken out of the memory where other processes of the same user could read them."""

from __future__ import annotations

import contextlib
import os

_ENV_START = 50
"""Number of the field ``env_start`` in /proc/PID/stat, from 1 (man 5 proc)."""


def take_secret(name: str) -> str | None:
    """Return a variable and remove it from the environment, also from /proc/self/environ; None where it is not set.

    That file shows the memory in which the kernel put the environment, whatever a process unsets later.
    """
    value = os.environ.pop(name, None)
    if value is not None:
        # Without /proc nobody can read it there either.
        with contextlib.suppress(OSError, ValueError, IndexError):
            _overwrite(f"{name}=".encode())
    return value


def _overwrite(start: bytes) -> None:
    with open("/proc/self/environ", "rb") as file:
        block = file.read()
    with open("/proc/self/stat", "rb") as file:
        # The name of the program, in parentheses, may hold anything.
        after_name = file.read().rpartition(b") ")[2].split()
    # The fields after the name begin with the third one.
    address = int(after_name[_ENV_START - 3])
    at = 0
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for entry in block.split(b"\0"):
            if entry.startswith(start):
                memory.seek(address + at + len(start))
                memory.write(b"x" * (len(entry) - len(start)))
            at += len(entry) + 1
