"""What /proc and /sys show of control groups in containers, in jobs and on bare machines, cut to what is read."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30
_UNLIMITED_V1 = 9223372036854771712
_ID = "3f1c9a77d0e85b4a6f2d9c01e4b7a8536c2f0d1e9b8a7654f3e2d1c0b9a87654"
_POD = "pod7b1e42a5_9c1d_4f7e_8a61_0d5c3b2a1f90"
_SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{_POD}.slice/cri-containerd-{_ID}.scope"


def _v1(point: str, root: str, controllers: str, number: int) -> str:
    source = f"{number} 31 0:{number} {root} {point} ro,nosuid,nodev,noexec,relatime"
    return f"{source} - cgroup cgroup rw,{controllers}\n"


def _v2(point: str, root: str, number: int = 30) -> str:
    return f"{number} 25 0:26 {root} {point} rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


_SYS = "/sys/fs/cgroup"
_OTHER_MOUNTS = "22 28 0:21 / /proc rw,relatime - proc proc rw\n24 28 0:23 / /dev/shm rw shared:3 - tmpfs tmpfs rw\n"

TREES: dict[str, dict[str, str]] = {
    # The container sees its own group at the mount point, and the path from outside in /proc/self/cgroup.
    "docker v1": {
        "proc/self/cgroup": f"11:memory:/docker/{_ID}\n4:cpu,cpuacct:/docker/{_ID}\n1:name=systemd:/docker/{_ID}\n",
        "proc/self/mountinfo": _OTHER_MOUNTS
        + _v1(f"{_SYS}/memory", f"/docker/{_ID}", "memory", 33)
        + _v1(f"{_SYS}/cpu,cpuacct", f"/docker/{_ID}", "cpu,cpuacct", 34),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"cache {2 * GIB}\ninactive_file 7\ntotal_inactive_file {GIB}\n"
        f"total_active_file {GIB}\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    },
    # A namespace of its own: all is "/".
    "docker v2": {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": _OTHER_MOUNTS + _v2(_SYS, "/"),
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.high": "max\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {GIB // 2}\nactive_file 0\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
    },
    "docker without options v2": {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": _OTHER_MOUNTS + _v2(_SYS, "/"),
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.high": "max\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
    },
    # Limits stand above our own group, and the tightest is not the nearest.
    "systemd slice v2": {
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n",
        "proc/self/mountinfo": _OTHER_MOUNTS + _v2(_SYS, "/"),
        "sys/fs/cgroup/user.slice/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.high": f"{6 * GIB}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.current": f"{5 * GIB}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "350000 100000\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope/cpu.max": "max 100000\n",
    },
    "kubernetes v1": {
        "proc/self/cgroup": f"9:memory:/kubepods/burstable/{_POD}/{_ID}\n"
        f"5:cpuacct,cpu:/kubepods/burstable/{_POD}/{_ID}\n"
        f"0::/kubepods/burstable/{_POD}/{_ID}\n",
        "proc/self/mountinfo": _OTHER_MOUNTS
        + _v1(f"{_SYS}/memory", f"/kubepods/burstable/{_POD}/{_ID}", "memory", 41)
        + _v1(f"{_SYS}/cpu,cpuacct", f"/kubepods/burstable/{_POD}/{_ID}", "cpu,cpuacct", 42),
        # The limit is the pod's, whose group is hidden.
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{_UNLIMITED_V1}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 4}\n",
        "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {GIB}\ntotal_inactive_file 0\nodd\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    },
    # hostPID or cgroupns=host: the path from outside, and nothing of it is to be seen here.
    "kubernetes v2": {
        "proc/self/cgroup": f"0::{_SLICE}\n",
        "proc/self/mountinfo": _OTHER_MOUNTS
        + _v2(
            _SYS,
            _SLICE,
        ),
        "sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    },
    # Version 1 has the controllers, version 2 is mounted beside it for systemd, or for hugetlb as here.
    "hybrid": {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/system.slice/sshd.service\n1:cpu:/system.slice\n"
        "0::/system.slice/sshd.service\n",
        "proc/self/mountinfo": _OTHER_MOUNTS
        + _v1(f"{_SYS}/cpu", "/", "cpu", 32)
        + _v1(f"{_SYS}/memory", "/", "memory", 35)
        + _v2(f"{_SYS}/unified", "/", 41),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{_UNLIMITED_V1}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
        "sys/fs/cgroup/memory/system.slice/memory.limit_in_bytes": f"{12 * GIB}\n",
        "sys/fs/cgroup/memory/system.slice/memory.usage_in_bytes": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory/system.slice/sshd.service/memory.limit_in_bytes": f"{_UNLIMITED_V1}\n",
        "sys/fs/cgroup/memory/system.slice/sshd.service/memory.usage_in_bytes": "1\n",
        "sys/fs/cgroup/cpu/system.slice/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/system.slice/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/unified/system.slice/sshd.service/memory.max": "1\n",
    },
    "slurm v1": {
        "proc/self/cgroup": "10:memory:/slurm/uid_1000/job_4711/step_0/task_0\n6:cpu,cpuacct:/\n"
        "3:cpuset:/slurm/uid_1000/job_4711/step_0\n",
        "proc/self/mountinfo": _OTHER_MOUNTS
        + _v1(f"{_SYS}/memory", "/", "memory", 36)
        + _v1(f"{_SYS}/cpu,cpuacct", "/", "cpu,cpuacct", 37),
        "sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes": f"{_UNLIMITED_V1}\n",
        "sys/fs/cgroup/memory/slurm/uid_1000/job_4711/memory.limit_in_bytes": f"{32 * GIB}\n",
        "sys/fs/cgroup/memory/slurm/uid_1000/job_4711/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/slurm/uid_1000/job_4711/step_0/task_0/memory.limit_in_bytes": f"{_UNLIMITED_V1}\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    },
    "slurm v2": {
        "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
        "proc/self/mountinfo": _OTHER_MOUNTS + _v2(_SYS, "/"),
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/memory.max": f"{64 * GIB}\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/memory.high": f"{64 * GIB}\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/memory.current": f"{4 * GIB}\n",
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/memory.max": "max\n",
    },
    # /proc/self/cgroup of a kernel without controllers, and a mount point with a blank.
    "odd": {
        "proc/self/cgroup": "0::/../../elsewhere\n",
        "proc/self/mountinfo": "short\n" + _v2("/sys/fs/c\\040group", "/"),
        "sys/fs/c group/memory.max": f"{GIB}\n",
        "sys/fs/c group/memory.current": f"{2 * GIB}\n",
        "sys/fs/c group/cpu.max": "100000 0\n",
    },
}


def plant(root: Path, tree: dict[str, str]) -> Path:
    """Write a tree below ``root``."""
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
