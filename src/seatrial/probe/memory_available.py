"""How much memory this process may still take on its host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_available"]


def memory_available(proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes: MemAvailable, or less where a control group (version 1 or 2) above us leaves less; None: not known.

    The page cache of files counts as free in both: it is given back.
    """
    rooms = [room for group in _groups(proc_root, cgroup_root) if (room := _room(group)) is not None]
    available = _fields(proc_root / "meminfo").get("MemAvailable:")
    if available is not None:
        rooms.append(available * 1024)
    return max(0, min(rooms)) if rooms else None


def _groups(proc_root: Path, cgroup_root: Path) -> Iterator[Path]:
    """The folders of our groups, from our own up to the topmost that is to be seen."""
    try:
        lines = (proc_root / "self" / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or "memory" in controllers.split(","):
            top = cgroup_root / "memory" if controllers else cgroup_root
            # In a container the path may be the host's, and what is mounted is our own group.
            parts = path.strip("/").split("/")
            yield from (top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _room(group: Path) -> int | None:
    """Bytes below the group's limit; None without one."""
    for limit_name, used_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((group / limit_name).read_text())
            used = int((group / used_name).read_text())
        except (OSError, ValueError):  # "max" too
            continue
        return limit - used + _fields(group / "memory.stat").get(cache_key, 0)
    return None


def _fields(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}
