"""Kills by the kernel's out-of-memory killer in the control group of this agent and its ranks."""

from __future__ import annotations

from pathlib import Path

from seatrial.probe.cgroup import oom_kills, read_cgroup


class OomWatch:
    """Counts the kills since it was made. The kernel counts a kill before it sends the signal (mm/oom_kill.c)."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._attributed = oom_kills(root)

    def take(self) -> bool:
        """Return whether there was a kill that no earlier call has returned."""
        count = oom_kills(self._root)
        if count is None or self._attributed is None or count <= self._attributed:
            return False
        self._attributed += 1
        return True

    def limit_bytes(self) -> int | None:
        """Return the memory that the tightest group allows; None: no group has a limit."""
        cgroup = read_cgroup(self._root)
        return cgroup.memory_limit_bytes if cgroup is not None else None
