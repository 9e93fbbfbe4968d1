"""Counting accelerators with a stand-in for the vendor's tool, and by what a launcher lets us see."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.probe.accelerators import count_accelerators

pytestmark = pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has accelerators")
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"

StandIn = Callable[[str], None]


@pytest.fixture
def stand_in_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Puts a script that stands in for nvidia-smi first on the path."""

    def write(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return write


def _devices(count: int) -> str:
    return "\n".join(f"echo 'GPU {index}: NVIDIA H200 (UUID: GPU-{index})'; echo '  MIG 1g'" for index in range(count))


def _sysfs(root: Path, *devices: tuple[str, str], amd_nodes: tuple[int, ...] = ()) -> Path:
    """A folder like /sys: PCI devices by vendor and class, and the SIMD units of each node that AMD's driver shows.

    A node is a folder with a file ``properties``, a name and a number a line (Linux, amdkfd/kfd_topology.c).
    """
    for number, (vendor, pci_class) in enumerate(devices):
        folder = root / "bus" / "pci" / "devices" / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{pci_class}\n")
    for number, units in enumerate(amd_nodes):
        folder = root / "class" / "kfd" / "kfd" / "topology" / "nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\nmem_banks_count 1\n")
    return root


def test_no_tool_and_no_driver_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = count_accelerators({}, sysfs=tmp_path)
    assert (found.count, found.vendor, found.problem) == (0, "", "")


def test_the_tool_says_how_many(stand_in_tool: StandIn) -> None:
    stand_in_tool(_devices(8))
    found = count_accelerators({})
    assert (found.count, found.vendor, found.source) == (8, "nvidia", "nvidia-smi -L")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "nvidia-smi: exit code 9: NVIDIA-SMI has failed"),
        ("exit 9", "nvidia-smi: exit code 9: no output"),
        ("echo 'No devices were found'", "nvidia-smi: No devices were found"),
        ("echo 'GPU 0: x'; exit 9", "nvidia-smi: exit code 9: GPU 0: x"),
        (None, "nvidia-smi: not found"),
    ],
)
def test_devices_on_the_bus_that_the_driver_does_not_show_are_a_problem(
    stand_in_tool: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        stand_in_tool(script)
    assert count_accelerators({}, sysfs=tmp_path / "empty").problem == ""
    found = count_accelerators({}, sysfs=_sysfs(tmp_path, *[(NVIDIA, "0x030200")] * 4, (NVIDIA, "0x068000")))
    assert (found.count, found.vendor) == (0, "")
    assert found.problem == (
        f"4 NVIDIA devices are on the PCI bus, but the driver shows none ({said}); load the driver, or use --device"
        " cpu to test the CPUs only."
    )


@pytest.mark.parametrize(
    ("vendor", "pci_class", "counts"),
    [
        (NVIDIA, "0x030000", True),
        (NVIDIA, "0x040300", False),
        (AMD, "0x120000", True),
        (AMD, "0x038000", True),
        (AMD, "0x030200", True),
        (AMD, "0x030000", False),
        (INTEL, "0x030200", False),
    ],
)
def test_which_devices_on_the_bus_are_accelerators(
    stand_in_tool: StandIn, tmp_path: Path, vendor: str, pci_class: str, counts: bool
) -> None:
    stand_in_tool("exit 0")
    problem = count_accelerators({}, sysfs=_sysfs(tmp_path, (vendor, pci_class))).problem
    assert ("device is on the PCI bus" in problem) is counts, problem


def test_what_the_driver_shows_is_no_problem_whatever_is_on_the_bus(stand_in_tool: StandIn, tmp_path: Path) -> None:
    """A container may have one device of a host with eight."""
    stand_in_tool(_devices(1))
    found = count_accelerators({}, sysfs=_sysfs(tmp_path, *[(NVIDIA, "0x030200")] * 8))
    assert (found.count, found.problem) == (1, "")


def test_the_devices_of_amd_are_the_nodes_with_simd_units(stand_in_tool: StandIn, tmp_path: Path) -> None:
    stand_in_tool("exit 0")
    sysfs = _sysfs(tmp_path, *[(AMD, "0x120000")] * 2, amd_nodes=(0, 1216, 1216))
    found = count_accelerators({"CUDA_VISIBLE_DEVICES": "1"}, sysfs=sysfs)
    assert (found.count, found.vendor, found.problem) == (1, "amd", "")
    stand_in_tool(_devices(4))
    assert count_accelerators({}, sysfs=sysfs).vendor == "nvidia"
    found = count_accelerators({}, first="amd", sysfs=sysfs)
    assert (found.count, found.vendor) == (2, "amd")


@pytest.mark.parametrize("can_be_killed", [True, False])
def test_a_tool_that_does_not_answer_is_given_up(
    stand_in_tool: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_killed: bool
) -> None:
    pid_file = tmp_path / "pid"
    stand_in_tool(f"trap '' TERM; echo $$ > {pid_file}; echo 'GPU 0: x'; exec sleep 600")
    monkeypatch.setattr("seatrial.probe.accelerators._TOOL_TIMEOUT_S", 1.0)
    monkeypatch.setattr("seatrial.util.tool._KILL_TIMEOUT_S", 2.0 if can_be_killed else 0.1)
    if not can_be_killed:  # as in state D: the signal is sent, and nothing comes of it
        monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    found = count_accelerators({}, sysfs=tmp_path)
    assert found.problem.startswith("nvidia-smi did not answer in 1 s; ")
    assert "--device cpu" in found.problem
    assert found.count == 0
    if can_be_killed:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)
    else:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,8,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0, GPU-1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-x"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7,8,9"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 8),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 8),
    ],
)
def test_what_a_launcher_lets_us_see(stand_in_tool: StandIn, environ: dict[str, str], count: int) -> None:
    stand_in_tool(_devices(8))
    found = count_accelerators(environ)
    assert (found.count, found.vendor, found.problem) == (count, "nvidia", "")


@pytest.mark.parametrize("value", ["all", "8", "GPU-x", "0,0", "cuda:0"])
def test_a_variable_that_names_no_device_by_mistake_is_a_problem(stand_in_tool: StandIn, value: str) -> None:
    stand_in_tool(_devices(8))
    found = count_accelerators({"CUDA_VISIBLE_DEVICES": value})
    assert found.count == 0
    assert found.problem.startswith(
        f"CUDA_VISIBLE_DEVICES={value} names none of the 8 devices that nvidia-smi -L shows"
    )
