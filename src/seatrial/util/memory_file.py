"""Files in memory, without a name: nobody can exchange one, and nothing is left of it when this process was killed."""

from __future__ import annotations

import fcntl

from seatrial.start import memory_file

# fcntl has none of these in the Pythons of conda and uv.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4

create = memory_file


def keep_size(fd: int) -> None:
    """Let nobody make the file shorter or longer."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
