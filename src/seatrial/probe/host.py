"""Facts of this host, each from one place. What cannot be told is None."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seatrial.probe.cgroup import read_cgroup

__all__ = [
    "Environment",
    "Limit",
    "Memory",
    "Space",
    "boot_id",
    "can_lock_any_memory",
    "driver_version",
    "environment",
    "limit",
    "machine_identity",
    "memory",
    "memory_available",
    "network_identity",
    "rdma_devices",
    "shared_memory",
]

_CAP_IPC_LOCK = 14

Environment = Literal["kubernetes", "docker", "podman", "slurm", "none"]
"""Whose words a remedy is to be told in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Of a file system, in bytes."""

    size_bytes: int
    free_bytes: int
    """For users without privileges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of the whole machine, in bytes."""

    total_bytes: int
    available_bytes: int
    """Without swapping, by the kernel's own estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource limit of this process; None: unlimited."""

    soft: int | None
    hard: int | None


def shared_memory(root: Path = Path("/")) -> Space | None:
    """Of /dev/shm; None where there is none."""
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return Space(size_bytes=found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize)


def memory(root: Path = Path("/")) -> Memory | None:
    """By /proc/meminfo."""
    found = {}
    try:
        for line in (root / "proc/meminfo").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    if len(found) < 2:
        return None
    return Memory(total_bytes=found["MemTotal"], available_bytes=found["MemAvailable"])


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: the kernel's estimate, or less where a control group leaves less.

    The page cache of files counts as free in both: it is given back. None: not known.
    """
    whole, group = memory(root), read_cgroup(root)
    left = (whole.available_bytes if whole else None, group.memory_left_bytes if group else None)
    return min((value for value in left if value is not None), default=None)


def limit(name: Literal["memlock", "nofile"]) -> Limit:
    """RLIMIT_MEMLOCK in bytes, or RLIMIT_NOFILE in open files."""
    number = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}[name]
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number))
    return Limit(soft=soft, hard=hard)


def can_lock_any_memory(root: Path = Path("/")) -> bool:
    """Whether RLIMIT_MEMLOCK does not count for us, by the capability IPC_LOCK; False where it cannot be told."""
    try:
        for line in (root / "proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def driver_version(vendor: str, root: Path = Path("/")) -> str | None:
    """Of the kernel driver of ``nvidia`` or ``amd``; None for other vendors, or when it does not tell.

    The amdgpu that is part of the kernel has no version of its own: the kernel's is its version.
    """
    try:
        if vendor == "nvidia":
            text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
            match = re.search(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)\s", text, re.MULTILINE)
            return match[1] if match else None
        if vendor == "amd":
            return (root / "sys/module/amdgpu/version").read_text(errors="replace").strip() or None
    except OSError:
        pass
    return None


def boot_id(root: Path = Path("/")) -> str | None:
    """A number that a machine draws each time it starts; the same in all of its containers."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(errors="replace").strip() or None
    except OSError:
        return None


def network_identity(root: Path = Path("/")) -> str | None:
    """Equal for processes that share their network, the loopback included; None where it cannot be told."""
    boot = boot_id(root)
    try:
        return f"{boot} {os.stat(root / 'proc/self/ns/net').st_ino}" if boot else None
    except OSError:
        return None


def machine_identity(root: Path = Path("/")) -> str | None:
    """Equal for processes that share name, network and /dev/shm: not for two containers; None: it cannot be told.

    Mount namespaces do not count: a wrapper (Apptainer) may give every process its own and leave the rest shared.
    """
    network = network_identity(root)
    try:
        shm = os.stat(root / "dev/shm").st_dev
    except OSError:
        shm = 0
    return f"{platform.node()} {network} {shm}" if network else None


def rdma_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """InfiniBand, RoCE and EFA devices, by name."""
    try:
        return tuple(sorted(path.name for path in (root / "sys/class/infiniband").iterdir()))
    except OSError:
        return ()


def environment(environ: Mapping[str, str], root: Path = Path("/")) -> Environment:
    """What this process runs in. A container counts before the Slurm job that it may run in: it sets the limits."""
    cgroup = read_cgroup(root)
    path = cgroup.path if cgroup else ""
    if "KUBERNETES_SERVICE_HOST" in environ or "kubepods" in path:
        return "kubernetes"
    if (root / "run/.containerenv").exists() or "libpod" in path:
        return "podman"
    if (root / ".dockerenv").exists() or re.search(r"(^|/)docker[-/]", path):
        return "docker"
    if "SLURM_JOB_ID" in environ or re.search(r"/slurm(stepd\.scope)?/|/job_[0-9]+", path):
        return "slurm"
    return "none"
