"""Facts of a host, from recorded files; what is missing is not known, and nothing raises."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from probe.cgroup_trees import TREES, plant

from seatrial.probe import host

_NVIDIA = {
    "closed": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC:  gcc 12",
    "open": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\nGCC",
}


def test_shared_memory_is_what_the_file_system_says(tmp_path: Path) -> None:
    assert host.shared_memory(tmp_path) is None
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    found = host.shared_memory(tmp_path)
    seen = os.statvfs(tmp_path)
    assert found is not None
    assert found.size_bytes == seen.f_blocks * seen.f_frsize
    assert 0 < found.free_bytes <= found.size_bytes


def test_memory_by_meminfo(tmp_path: Path) -> None:
    text = "MemTotal:       24684084 kB\nMemFree: 9 kB\nMemAvailable:   24294800 kB\nHugePages_Total:       0\n"
    found = host.memory(plant(tmp_path, {"proc/meminfo": text}))
    assert found == host.Memory(total_bytes=24684084 * 1024, available_bytes=24294800 * 1024)


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: 3 kB\n", "MemTotal: x kB\n"])
def test_missing_memory_values_are_unknown(tmp_path: Path, text: str) -> None:
    assert host.memory(plant(tmp_path, {"proc/meminfo": text})) is None
    assert host.memory(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("tree", "kib", "left"),
    [
        ("docker v2", 32 << 20, 3 << 29),
        ("docker v2", 1 << 20, 1 << 30),
        ("slurm v1", 64 << 20, 30 << 30),
        ("odd", 32 << 20, 0),
        ("docker without options v2", 32 << 20, 32 << 30),
    ],
)
def test_a_control_group_may_leave_less_memory_than_the_host_has(
    tmp_path: Path, tree: str, kib: int, left: int
) -> None:
    meminfo = f"MemTotal: {64 << 20} kB\nMemAvailable: {kib} kB\n"
    assert host.memory_available(plant(tmp_path, {**TREES[tree], "proc/meminfo": meminfo})) == left


def test_memory_of_an_unreadable_host_is_unknown(tmp_path: Path) -> None:
    assert host.memory_available(tmp_path) is None
    assert host.memory_available(plant(tmp_path, TREES["docker v2"])) == 3 << 29


def test_limits_are_those_of_this_process() -> None:
    for found, number in (
        (host.soft_limit("nofile"), resource.RLIMIT_NOFILE),
        (host.soft_limit("memlock"), resource.RLIMIT_MEMLOCK),
    ):
        soft, _ = resource.getrlimit(number)
        assert found == (None if soft == resource.RLIM_INFINITY else soft)


@pytest.mark.parametrize(("kind", "version"), [("closed", "535.129.03"), ("open", "570.86.15")])
def test_the_driver_of_nvidia(tmp_path: Path, kind: str, version: str) -> None:
    plant(tmp_path, {"proc/driver/nvidia/version": _NVIDIA[kind], "sys/module/amdgpu/version": "6.10.5\n"})
    assert host.driver_version("nvidia", tmp_path) == version
    assert host.driver_version("amd", tmp_path) == "6.10.5"
    assert host.driver_version("cpu", tmp_path) is None


def test_a_driver_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert host.driver_version("nvidia", tmp_path) is None
    assert host.driver_version("amd", tmp_path) is None
    assert host.driver_version("nvidia", plant(tmp_path, {"proc/driver/nvidia/version": "something else\n"})) is None


def test_boot_and_rdma_devices(tmp_path: Path) -> None:
    assert (host.boot_id(tmp_path), host.rdma_devices(tmp_path)) == (None, ())
    plant(tmp_path, {"proc/sys/kernel/random/boot_id": "f9b1\n", "sys/class/infiniband/mlx5_1/x": ""})
    plant(tmp_path, {"sys/class/infiniband/mlx5_0/x": ""})
    assert (host.boot_id(tmp_path), host.rdma_devices(tmp_path)) == ("f9b1", ("mlx5_0", "mlx5_1"))


def test_processes_of_one_machine_share_its_identity(tmp_path: Path) -> None:
    assert host.machine_identity() == host.machine_identity()
    assert host.network_identity(tmp_path) is None
    tree = {"proc/sys/kernel/random/boot_id": "f9b1\n", "proc/self/ns/net": ""}
    (without_shm, other) = (plant(tmp_path / name, tree) for name in ("a", "b"))
    assert str(host.network_identity(without_shm)).startswith("f9b1 ")
    assert host.network_identity(without_shm) != host.network_identity(other)
    assert str(host.machine_identity(without_shm)).endswith(" 0")


@pytest.mark.parametrize(
    ("status", "any_memory"),
    [
        ("CapEff:\t0000000000004000\n", True),
        ("CapInh:\t0000000000004000\nCapEff:\t00000000a80425fb\n", False),  # root of a container with Docker's defaults
        ("CapEff:\n", False),
        ("", False),
    ],
)
def test_a_process_with_ipc_lock_has_no_limit(tmp_path: Path, status: str, any_memory: bool) -> None:
    assert host.can_lock_any_memory(plant(tmp_path, {"proc/self/status": status})) == any_memory
    assert not host.can_lock_any_memory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ("docker v1", "docker"),
        ("docker v2", "none"),  # nothing in it but /.dockerenv says so
        ("kubernetes v1", "kubernetes"),
        ("kubernetes v2", "kubernetes"),
        ("slurm v1", "slurm"),
        ("slurm v2", "slurm"),
        ("systemd slice v2", "none"),
        ("hybrid", "none"),
    ],
)
def test_the_environment_by_the_control_group(tmp_path: Path, tree: str, found: str) -> None:
    assert host.detect_runtime({}, plant(tmp_path, TREES[tree])) == found


@pytest.mark.parametrize(
    ("environ", "files", "found"),
    [
        ({}, (), "none"),
        ({"SLURM_JOB_ID": "1"}, (), "slurm"),
        ({"SLURM_JOB_ID": "1"}, (".dockerenv",), "docker"),
        ({}, ("run/.containerenv",), "podman"),
        ({}, ("run/.containerenv", ".dockerenv"), "podman"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (".dockerenv",), "kubernetes"),
    ],
)
def test_the_environment_by_what_it_leaves(
    tmp_path: Path, environ: dict[str, str], files: tuple[str, ...], found: str
) -> None:
    assert host.detect_runtime(environ, plant(tmp_path, dict.fromkeys(files, ""))) == found


@pytest.mark.parametrize(
    ("environ", "uts", "files", "found"),
    [
        ({}, "uts:[4026531838]", (), False),
        ({"SLURM_JOB_ID": "1"}, "uts:[4026531838]", (), False),
        ({}, "", (), False),  # macOS
        ({}, "uts:[4026532388]", (), True),  # toolbx --hostname, LXC
        ({}, "uts:[4026531838]", (".dockerenv",), True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "uts:[4026532388]", (), True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SEATRIAL_NODE_NAME": "gpu-0"}, "uts:[4026532388]", (), False),
    ],
)
def test_whether_the_host_name_may_be_that_of_a_container(
    tmp_path: Path, environ: dict[str, str], uts: str, files: tuple[str, ...], found: bool
) -> None:
    plant(tmp_path, dict.fromkeys(files, ""))
    if uts:
        (tmp_path / "proc/self/ns").mkdir(parents=True)
        (tmp_path / "proc/self/ns/uts").symlink_to(uts)
    assert host.is_in_container(environ, tmp_path) is found


def test_a_host_name_in_a_namespace_of_its_own_is_that_of_a_container() -> None:
    """By the kernel: its number of the first namespace is a constant."""
    program = "from seatrial.probe import host; print(host.is_in_container({}))"
    inside = ["unshare", "--user", "--uts", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*inside, ""], capture_output=True).returncode != 0:
        pytest.skip("needs unshare, and user namespaces")
    assert subprocess.run([*inside, program], capture_output=True, text=True, check=True).stdout == "True\n"
