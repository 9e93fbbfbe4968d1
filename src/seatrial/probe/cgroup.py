"""The control group of this process: how much memory and CPU time it may use, version 1, version 2 and both at once.

A limit of any group above counts too, as far as it can be seen: in a container the groups above its own are hidden, and
what stands there is not known to us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial.probe.mounts import Mount, mounts

__all__ = ["Cgroup", "read_cgroup", "throttled_s"]

_UNLIMITED = 1 << 60
"""Version 1 says "no limit" as a number of about 2**63; no machine has 2**60 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """What the groups from ours up to the topmost visible one allow. None: no limit, or not known."""

    path: str
    """Of our group as /proc/self/cgroup tells it: where memory is counted, else the first one."""
    memory_limit_bytes: int | None
    """The tightest limit."""
    memory_left_bytes: int | None
    """The least that is left below any limit. The page cache of files is not counted as used: it is given back."""
    quota_cores: float | None
    """CPU time per time, the tightest: 1.5 is one and a half cores."""


def read_cgroup(root: Path = Path("/")) -> Cgroup | None:
    """Where we are and what is allowed there; None where there are no control groups (macOS)."""
    paths = _paths(root)
    if not paths:
        return None
    mounted = _mounts(root)
    memory, cpu = (_groups(name, paths, mounted, root) for name in ("memory", "cpu"))
    rooms = [room for folder in memory if (room := _memory(folder)) is not None]
    quotas = [quota for folder in cpu if (quota := _quota(folder)) is not None]
    return Cgroup(
        path=paths.get("memory") or paths.get("") or next(iter(paths.values())),
        memory_limit_bytes=min((limit for limit, _ in rooms), default=None),
        memory_left_bytes=min((max(0, limit - used) for limit, used in rooms), default=None),
        quota_cores=min(quotas, default=None),
    )


def throttled_s(root: Path = Path("/")) -> float | None:
    """For how long our group, or the one above it that did so most, was stopped by its CPU quota; summed over cores.

    None: not known.
    """
    tables = [_table(folder / "cpu.stat") for folder in _groups("cpu", _paths(root), _mounts(root), root)]
    # Version 2 counts microseconds, version 1 nanoseconds.
    units = {"throttled_usec": 1e6, "throttled_time": 1e9}
    return max((each[name] / unit for each in tables for name, unit in units.items() if name in each), default=None)


def _paths(root: Path) -> dict[str, str]:
    """Our group in each hierarchy, by controller."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path:
            # Version 2 has no name here: "0::/path".
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(root: Path) -> list[Mount]:
    """The mounted hierarchies; the root of each is the group that is to be seen there."""
    return [mount for mount in mounts(root / "proc") if mount.kind in ("cgroup", "cgroup2")]


def _groups(controller: str, paths: dict[str, str], mounted: list[Mount], root: Path) -> list[Path]:
    """The folders of our group and of all above it, ours first; none where the controller is nowhere."""
    if controller in paths:
        path, mounted = paths[controller], [mount for mount in mounted if controller in mount.options]
    elif "" in paths:
        path, mounted = paths[""], [mount for mount in mounted if mount.kind == "cgroup2"]
    else:
        return []
    folders = []
    for mount in mounted:
        top = root / mount.point.lstrip("/")
        below = _below(path, mount.root)
        # A container may see its own group only, under a path that is told from the outside.
        own = top / below if below is not None and (top / below).is_dir() else top
        if own.is_dir():
            folders.append((own, top))
    if not folders:
        return []
    # Where one hierarchy is mounted twice, the mount that shows more of it.
    own, top = max(folders, key=lambda pair: len(pair[0].parts) - len(pair[1].parts))
    return list(_upwards(own, top))


def _below(path: str, root: str) -> str | None:
    """The path of a group inside of what is mounted, or None when it is outside."""
    own, top = PurePosixPath(path), PurePosixPath(root)
    if ".." in own.parts or not own.is_relative_to(top):
        return None
    return str(own.relative_to(top))


def _upwards(own: Path, top: Path) -> Iterator[Path]:
    while True:
        yield own
        if own == top:
            return
        own = own.parent


def _memory(folder: Path) -> tuple[int, int] | None:
    """Limit and use in bytes; None without a limit. Beyond ``memory.high`` processes are not killed but held up."""
    stat = _table(folder / "memory.stat")
    limits = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    # Version 1 tells here what groups above allow that are hidden from us.
    limits.append(stat.get("hierarchical_memory_limit"))
    limit = min((value for value in limits if value is not None and value < _UNLIMITED), default=None)
    if limit is None:
        return None
    used, prefix = _number(folder / "memory.current"), ""
    if used is None:
        used, prefix = _number(folder / "memory.usage_in_bytes") or 0, "total_"
    cache = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return limit, max(0, used - cache)


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number; empty where it cannot be read."""
    rows = (line.partition(" ") for line in _lines(path))
    return {name: int(value) for name, _, value in rows if value.isdigit()}


def _lines(path: Path) -> list[str]:
    """None where it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _quota(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    limit_us, period_us = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return limit_us / period_us if limit_us and period_us and limit_us > 0 else None


def _number(path: Path) -> int | None:
    """None for ``max`` and for what cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
