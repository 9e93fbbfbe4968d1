"""The control group of this process: how much memory and CPU time it may use, in cgroup version 1, version 2 and
hybrid.

A limit of any group above counts too, as far as it is visible: in a container the groups above the container's are
hidden, so their limits are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial.probe.mounts import Mount, mounts

_UNLIMITED = 1 << 60
"""Version 1 expresses "no limit" as a number of about 2**63; no machine has 2**60 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """Limits of the groups from ours up to the topmost visible one. None: no limit, or not known."""

    path: str
    """Path of our group in /proc/self/cgroup: that of the memory controller, else the first one."""
    memory_limit_bytes: int | None
    """The tightest limit."""
    memory_left_bytes: int | None
    """The least memory left below any limit. The page cache counts as free: the kernel gives it back."""
    quota_cores: float | None
    """CPU time per time, the tightest: 1.5 is one and a half cores."""


def read_cgroup(root: Path = Path("/")) -> Cgroup | None:
    """Return the limits of this process; None where there are no control groups (macOS)."""
    paths = _paths(root)
    if not paths:
        return None
    mounted = _mounts(root)
    memory, cpu = (_groups(name, paths, mounted, root) for name in ("memory", "cpu"))
    usages = [usage for folder in memory if (usage := _memory(folder)) is not None]
    quotas = [quota for folder in cpu if (quota := _quota(folder)) is not None]
    return Cgroup(
        path=paths.get("memory") or paths.get("") or next(iter(paths.values())),
        memory_limit_bytes=min((limit for limit, _ in usages), default=None),
        memory_left_bytes=min((max(0, limit - used) for limit, used in usages), default=None),
        quota_cores=min(quotas, default=None),
    )


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of our group the kernel's out-of-memory killer has killed; None: not known.

    Version 2 counts the groups below ours as well. A kill because the whole host ran out of memory counts too.
    """
    for folder in _groups("memory", _paths(root), _mounts(root), root)[:1]:
        for name in ("memory.events", "memory.oom_control"):
            if (count := _table(folder / name).get("oom_kill")) is not None:
                return count
    return None


@dataclass(frozen=True, slots=True)
class Throttling:
    """The time for which the CPU quota has stopped a group so far, and the CPU time that it has used, over all cores.

    Processes of others in the group use up its quota, too.
    """

    stopped_s: float
    used_s: float | None
    """None: not known."""

    def since(self, before: Throttling) -> Throttling:
        """Return the difference."""
        is_known = self.used_s is not None and before.used_s is not None
        return Throttling(
            self.stopped_s - before.stopped_s, (self.used_s or 0.0) - (before.used_s or 0.0) if is_known else None
        )


def throttling(root: Path = Path("/")) -> dict[str, Throttling]:
    """Return that of our group and of each group above it, by folder; without those of which it is not known."""
    paths, mounted = _paths(root), _mounts(root)
    folders = counting = _groups("cpu", paths, mounted, root)
    if "cpuacct" in paths and paths["cpuacct"] == paths.get("cpu"):  # version 1 may count in another hierarchy
        counting = _groups("cpuacct", paths, mounted, root)
    found = {}
    # Both from ours upward. A hierarchy whose mount shows less of the groups above counts for those that it shows.
    for folder, other in zip(folders, (*counting, *folders[len(counting) :]), strict=False):
        table = _table(folder / "cpu.stat")
        # Version 2 counts microseconds, version 1 nanoseconds.
        if "throttled_usec" in table:
            used_us = table.get("usage_usec")
            found[str(folder)] = Throttling(table["throttled_usec"] / 1e6, None if used_us is None else used_us / 1e6)
        elif "throttled_time" in table:
            used_ns = _number(other / "cpuacct.usage")
            found[str(folder)] = Throttling(table["throttled_time"] / 1e9, None if used_ns is None else used_ns / 1e9)
    return found


def most_stopped(before: Mapping[str, Throttling], now: Mapping[str, Throttling]) -> Throttling | None:
    """Return the difference for the group that was stopped most between two readings; None without a group in both."""
    changes = (reading.since(before[group]) for group, reading in now.items() if group in before)
    return max(changes, key=lambda change: change.stopped_s, default=None)


def _paths(root: Path) -> dict[str, str]:
    """Return the path of our group in each hierarchy, by controller."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path:
            # Version 2 has no controller name here: "0::/path".
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(root: Path) -> list[Mount]:
    """Return the mounted hierarchies; the root of each is the group that is visible there."""
    return [mount for mount in mounts(root / "proc") if mount.kind in ("cgroup", "cgroup2")]


def _groups(controller: str, paths: dict[str, str], mounted: list[Mount], root: Path) -> list[Path]:
    """Return the folders of our group and of all above it, ours first; none where the controller is not mounted."""
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
        # A container may see only its own group, while /proc shows the path outside the container.
        own = top / below if below is not None and _is_seen(top / below) else top
        if _is_seen(own):
            folders.append((own, top))
    if not folders:
        return []
    # Where one hierarchy is mounted twice, take the mount that shows more of it.
    own, top = max(folders, key=lambda pair: len(pair[0].parts) - len(pair[1].parts))
    return list(_upwards(own, top))


def _is_seen(folder: Path) -> bool:
    """Return whether a folder is there. Root may have mounted the hierarchy in one that this user cannot enter."""
    try:
        return folder.is_dir()
    except OSError:
        return False


def _below(path: str, root: str) -> str | None:
    """Return the path of a group relative to the mount's root; None when it is outside."""
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
    """Return the lines of a file with a name and a number; empty where it cannot be read."""
    rows = (line.partition(" ") for line in _lines(path))
    return {name: int(value) for name, _, value in rows if value.isdigit()}


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; empty where it cannot be read."""
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
    """Return the number in a file; None for ``max`` and where it cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
