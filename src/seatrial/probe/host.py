"""Facts of this host, each from one source. None: not known."""

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

_CAP_IPC_LOCK = 14

_UTS_OF_MACHINE = "uts:[4026531838]"
"""The kernel's constant number of the first namespace of host names (PROC_UTS_INIT_INO)."""

Runtime = Literal["kubernetes", "docker", "podman", "slurm", "none"]
"""The surroundings of a process, by which a remedy is worded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size of a file system."""

    size_bytes: int
    free_bytes: int
    """Free space for users without privileges."""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the whole machine."""

    total_bytes: int
    available_bytes: int
    """Memory available without swapping, by the kernel's estimate."""


def host_name() -> str:
    """Return the name of this machine. A pod's host name is not the node's, so its manifest sets SEATRIAL_NODE_NAME."""
    return os.environ.get("SEATRIAL_NODE_NAME") or platform.node()


def is_in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether ``host_name`` may be that of a container: it can be any word, and says nothing about the
    machine."""
    if environ.get("SEATRIAL_NODE_NAME"):
        return False
    try:
        has_own_name = os.readlink(root / "proc/self/ns/uts") != _UTS_OF_MACHINE
    except OSError:
        has_own_name = False
    # A container may be the only one in a small virtual machine, whose first namespace it shares.
    return has_own_name or detect_runtime(environ, root) in ("kubernetes", "docker", "podman")


def shared_memory(root: Path = Path("/")) -> Space | None:
    """Return the size of /dev/shm; None where there is none."""
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return Space(
        size_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def memory(root: Path = Path("/")) -> Memory | None:
    """Return the memory of the machine from /proc/meminfo; None where it cannot be read."""
    sizes = {}
    try:
        for line in (root / "proc/meminfo").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    if len(sizes) < 2:
        return None
    return Memory(total_bytes=sizes["MemTotal"], available_bytes=sizes["MemAvailable"])


def memory_available(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still allocate: the kernel's estimate, or less where a control group
    leaves less.

    The page cache counts as free in both: the kernel gives it back. None: not known.
    """
    whole, group = memory(root), read_cgroup(root)
    left = (whole.available_bytes if whole else None, group.memory_left_bytes if group else None)
    return min((value for value in left if value is not None), default=None)


def soft_limit(name: Literal["memlock", "nofile"]) -> int | None:
    """Return the soft RLIMIT_MEMLOCK in bytes or RLIMIT_NOFILE in open files; None: unlimited."""
    number = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}[name]
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def can_lock_any_memory(root: Path = Path("/")) -> bool:
    """Return whether RLIMIT_MEMLOCK does not apply to us, because of the capability IPC_LOCK; False where it is not
    known."""
    try:
        for line in (root / "proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def driver_version(vendor: str, root: Path = Path("/")) -> str | None:
    """Return the version of the kernel driver of ``nvidia`` or ``amd``; None for other vendors, or where it is not
    known.

    The amdgpu that is part of the kernel has no separate version: the kernel's version is its version.
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
    """Return the random number that a machine draws at each boot; it is the same in all of its containers."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(errors="replace").strip() or None
    except OSError:
        return None


def network_identity(root: Path = Path("/")) -> str | None:
    """Return a text that is equal for processes that share their network, including the loopback; None: not known."""
    boot = boot_id(root)
    try:
        return f"{boot} {os.stat(root / 'proc/self/ns/net').st_ino}" if boot else None
    except OSError:
        return None


def machine_identity(root: Path = Path("/")) -> str | None:
    """Return a text that is equal for processes that share host name, network and /dev/shm, so not for two containers.

    None: not known. Mount namespaces do not count: a wrapper (Apptainer) may give every process a separate one and
    share the rest.
    """
    network = network_identity(root)
    try:
        shm = os.stat(root / "dev/shm").st_dev
    except OSError:
        shm = 0
    return f"{platform.node()} {network} {shm}" if network else None


def rdma_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the names of InfiniBand, RoCE and EFA devices."""
    try:
        return tuple(sorted(path.name for path in (root / "sys/class/infiniband").iterdir()))
    except OSError:
        return ()


def detect_runtime(environ: Mapping[str, str], root: Path = Path("/")) -> Runtime:
    """Return what this process runs in. A container has priority over the Slurm job around it: the container sets the
    limits."""
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
