"""Opening the device of a rank: the CPU, devices that torch cannot drive, and doubles of accelerators."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seatrial.rank.device import Device, open_device
from seatrial.worker.failures import cause_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has accelerators")

H200 = {"name": "NVIDIA H200", "total_memory": 1 << 37}


class _StandInDevices:
    """Stands in for torch.cuda where there are so many devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chosen: list[int] = []
        self.patch = monkeypatch
        self.patch.setattr(torch.cuda, "init", lambda: None)
        self.patch.setattr(torch.cuda, "set_device", self.chosen.append)
        self.has(8)

    def has(self, count: int, **properties: Any) -> None:
        self.patch.setattr(torch.cuda, "device_count", lambda: count)
        self.patch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**H200, **properties))


@pytest.fixture
def stand_in_devices(monkeypatch: pytest.MonkeyPatch) -> _StandInDevices:
    return _StandInDevices(monkeypatch)


def test_the_cpu_is_opened_where_it_was_decided_on() -> None:
    device = open_device("cpu", 3, 2)
    assert (device.type, device.vendor, device.index, device.backend) == ("cpu", "cpu", 0, "gloo")
    assert (device.torch, device.id) == (torch.device("cpu"), "")
    assert torch.get_num_threads() == 2
    assert device.name
    assert device.memory_bytes > 1 << 28
    assert torch.__version__ in device.libraries
    device.synchronize()


def test_near_a_device_a_process_runs_on_the_cores_of_its_node(tmp_path: Path) -> None:
    device = replace(open_device("cpu", 0, 1), bus="0000:1b:00")
    folder = tmp_path / "bus" / "pci" / "devices" / "0000:1b:00.0"
    folder.mkdir(parents=True)
    mine = os.sched_getaffinity(0)
    for cpulist, expected in ((f"{min(mine)}\n", {min(mine)}), ("4000-4003\n", mine), ("\n", mine), ("none\n", mine)):
        (folder / "local_cpulist").write_text(cpulist)
        with device.on_its_numa_node(sysfs=tmp_path):
            assert os.sched_getaffinity(0) == expected
        assert os.sched_getaffinity(0) == mine
    with replace(device, bus="").on_its_numa_node(sysfs=tmp_path):
        assert os.sched_getaffinity(0) == mine


@pytest.mark.parametrize(("wanted", "words"), [("cuda", "CUDA error: "), ("rocm", "HIP error: ")])
def test_an_accelerator_that_torch_cannot_drive_is_a_fault_of_its_host(wanted: str, words: str) -> None:
    with pytest.raises(
        RuntimeError, match=f"^{words}the driver shows 0 devices and torch finds none usable: "
    ) as raised:
        open_device(wanted, 0, 1)
    assert cause_of(raised.value) == "setup"


def test_no_error_of_the_driver_is_taken_for_a_mistake_of_ours(
    stand_in_devices: _StandInDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeferredError(Exception):
        """As torch has one for what it had put off."""

    def fail() -> None:
        raise DeferredError("device=0, num_gpus=0")

    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(
        RuntimeError, match=r"the driver shows 8 devices .* none usable: device=0, num_gpus=0"
    ) as raised:
        open_device("cuda", 0, 1)
    assert cause_of(raised.value) == "setup"


def test_each_local_rank_has_the_device_of_its_number(stand_in_devices: _StandInDevices) -> None:
    opened = [open_device("cuda", local_rank, 1) for local_rank in range(8)]
    assert [device.index for device in opened] == stand_in_devices.chosen == [*range(8)]


def test_one_device_in_sight_is_that_of_any_local_rank(stand_in_devices: _StandInDevices) -> None:
    stand_in_devices.has(1)
    assert open_device("cuda", 5, 1).index == 0


def test_ranks_never_share_a_device_unsaid(stand_in_devices: _StandInDevices) -> None:
    stand_in_devices.has(4)
    with pytest.raises(RuntimeError, match="no device is left for local rank 4: torch finds 4 usable") as raised:
        open_device("cuda", 4, 1)
    assert cause_of(raised.value) == "setup"
    assert stand_in_devices.chosen == []


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ""),
        ({"uuid": "5a1c0000-0000-0000-0000-000000000001"}, "5a1c0000-0000-0000-0000-000000000001"),
        ({"uuid": "00000000-0000-0000-0000-000000000000"}, ""),
        ({"pci_domain_id": 0, "pci_bus_id": 0xC1, "pci_device_id": 0}, "0000:c1:00"),
        ({"uuid": "0000-00", "pci_domain_id": 1, "pci_bus_id": 2, "pci_device_id": 3}, "0001:02:03"),
        ({"pci_bus_id": 2}, ""),
    ],
)
def test_a_device_has_a_name_of_its_own_where_torch_knows_one(
    stand_in_devices: _StandInDevices, properties: dict[str, Any], expected: str
) -> None:
    stand_in_devices.has(8, **properties)
    device: Device = open_device("cuda", 2, 1)
    assert (device.id, device.name, device.memory_bytes) == (expected, "NVIDIA H200", 1 << 37)
