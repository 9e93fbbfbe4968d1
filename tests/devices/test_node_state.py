"""Snapshots of a node and the changes between them; the same as JSON, also of strangers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.devices.network_ports import read_ports
from seatrial.devices.node_state import NodeReader, _visible, slowdown_of, window_between
from seatrial.devices.plain_json import from_json, to_json
from seatrial.devices.plausible import believable
from seatrial.devices.readers import Reader
from seatrial.devices.state import DeviceSample, DeviceState, KernelEvent, NetworkPort, NodeState, NodeWindow

IDLE = DeviceState(
    vendor="nvidia",
    index=0,
    uuid="GPU-1",
    temperature_c=30,
    margin_k=60,
    counters={"pcie_replays": 106},
    throttled_ns={"power_brake": 5, "power_cap": 9},
    nvlinks_active=18,
)


def _window(after: DeviceState, *samples: DeviceSample, seconds: float = 10.0) -> NodeWindow:
    first, last = NodeState(devices=(IDLE,)), NodeState(devices=(after,))
    return window_between("compute", "measure", seconds, first, last, {"GPU-1": samples})


def test_old_totals_are_no_change() -> None:
    (device,) = _window(IDLE).devices
    assert (device.risen, device.throttled_ns, device.nvlinks_lost, device.broken) == ({}, {}, 0, ())


def test_what_rose_is_a_change() -> None:
    after = replace(
        IDLE,
        counters={"pcie_replays": 116},
        throttled_ns={"power_brake": 7_100_000_005, "power_cap": 9},
        nvlinks_active=16,
        broken=("row_remap_failure",),
        recovery_action="reset",
    )
    (device,) = _window(after).devices
    assert (device.risen, device.throttled_ns) == ({"pcie_replays": 10}, {"power_brake": 7_100_000_000})
    assert (device.nvlinks_lost, device.broken, device.recovery_action) == (2, ("row_remap_failure",), "reset")


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    assert _window(replace(IDLE, counters={"pcie_replays": 3})).devices[0].risen == {"pcie_replays": 3}


def test_a_lost_device_loses_no_links_and_shows_when_it_was_lost() -> None:
    (device,) = _window(DeviceState(vendor="nvidia", index=0, uuid="GPU-1", problem="lost")).devices
    assert (device.problem, device.nvlinks_lost, device.risen) == ("lost", 0, {})


def test_samples_of_a_busy_device() -> None:
    idle = DeviceSample(
        uuid="GPU-1",
        utilization_percent=0,
        temperature_c=31,
        pcie_generation=1,
        pcie_width=16,
        sm_mhz=345,
        throttle_reasons=("hw_slowdown",),
    )
    busy = DeviceSample(
        uuid="GPU-1",
        utilization_percent=90,
        temperature_c=86,
        pcie_generation=5,
        pcie_width=16,
        sm_mhz=1980,
        power_w=650,
        throttle_reasons=("hw_slowdown", "power_cap"),
    )
    (device,) = _window(IDLE, idle, busy).devices
    assert (device.samples, device.utilization_percent, device.temperature_max_c) == (2, 45, 86)
    assert (device.pcie_generation, device.sm_mhz, device.power_max_w, device.margin_min_k) == (5, 1980, 650, 4)
    # Where the device counts the time itself, sampling says nothing.
    assert device.throttled_share == {"hw_slowdown": 0.5}


def test_the_numa_node_is_that_of_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "bus" / "pci" / "devices" / "0000:17:00.0"
    folder.mkdir(parents=True)

    def numa_node(known: int | None, written: str) -> int | None:
        (folder / "numa_node").write_text(written)
        device = replace(IDLE, bus="0000:17:00", numa_node=known)
        reader = Reader(source="a test", states=lambda: (device,), samples=None, topology=dict)
        return NodeReader({}, sysfs=tmp_path, kernel_log="none", readers=(reader,)).snapshot().devices[0].numa_node

    assert [numa_node(None, "1\n"), numa_node(7, "1\n"), numa_node(3, "-1\n"), numa_node(None, "?")] == [1, 1, 3, None]


def test_a_reason_is_counted_as_a_share_of_what_the_device_counts() -> None:
    before = replace(IDLE, throttled_ticks={"hw_thermal": 5, "power_cap": 0}, ticks=1000)
    after = replace(before, throttled_ticks={"hw_thermal": 255, "power_cap": 0}, ticks=2000)
    last = NodeState(devices=(after,))
    (device,) = window_between("compute", "measure", 10, NodeState(devices=(before,)), last, {}).devices
    assert device.throttled_share == {"hw_thermal": 0.25}
    # A device that counts nothing meanwhile was reset, or stands still.
    (device,) = window_between("compute", "measure", 10, last, last, {}).devices
    assert device.throttled_share == {}


def test_the_slowdown_temperature_from_the_margin_or_the_driver() -> None:
    assert slowdown_of(IDLE) == 90
    assert slowdown_of(replace(IDLE, slowdown_c=87)) == 87
    assert slowdown_of(replace(IDLE, margin_k=None)) is None


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("1,0", ("GPU-bbb", "GPU-aaa")),
        ("GPU-bb", ("GPU-bbb",)),
        ("", ()),
        ("0,9,1", ("GPU-aaa",)),
        ("MIG-123", ("GPU-bbb",)),
    ],
)
def test_visible_devices(value: str, uuids: tuple[str, ...]) -> None:
    devices = (replace(IDLE, uuid="GPU-aaa"), replace(IDLE, uuid="GPU-bbb", index=1, mig=True))
    assert _visible(devices, {"CUDA_VISIBLE_DEVICES": value}) == uuids
    assert _visible(devices, {}) is None


@pytest.mark.parametrize(
    ("variables", "uuids"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, ("c", "b")),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, ("b",)),  # the second one of those two
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ("a",)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("b",)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-c,GPU-a"}, ("c", "a")),
    ],
)
def test_visible_devices_of_amd(variables: dict[str, str], uuids: tuple[str, ...]) -> None:
    devices = tuple(DeviceState(vendor="amd", index=number, uuid=uuid) for number, uuid in enumerate("abc"))
    assert _visible(devices, variables) == uuids


def test_ports_from_sysfs(tmp_path: Path) -> None:
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    for folder, files in (
        (
            port,
            {
                "state": "4: ACTIVE",
                "phys_state": "5: LinkUp",
                "rate": "400 Gb/sec (4X NDR)",
                "link_layer": "InfiniBand",
            },
        ),
        (port / "counters", {"symbol_error": "3", "port_rcv_errors": "N/A"}),
        (port / "hw_counters", {"out_of_sequence": "7"}),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    (found,) = read_ports(tmp_path)
    assert (found.name, found.state, found.rate_gbit_per_s) == ("mlx5_0/1", "ACTIVE", 400)
    assert found.counters == {"symbol_error": 3, "out_of_sequence": 7}
    for text, rate in (("1.2.3 Gb/sec", 1.2), ("2.5 Gb/sec", 2.5), (".", None)):
        (port / "rate").write_text(text)
        assert read_ports(tmp_path)[0].rate_gbit_per_s == rate
    # A container sees the adapters of others, and has the device files of its own ones only.
    verbs = tmp_path / "class" / "infiniband_verbs" / "uverbs3"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_0\n")
    assert [port.usable for port in read_ports(tmp_path, dev=tmp_path / "dev")] == [False]
    # Ranks may use it by TCP: the interface is in the network namespace of this process.
    interface = port.parent.parent / "device" / "net" / "ens1"
    interface.mkdir(parents=True)
    assert [port.usable for port in read_ports(tmp_path, dev=tmp_path / "dev")] == [True]
    interface.rmdir()
    (tmp_path / "dev" / "infiniband").mkdir(parents=True)
    (tmp_path / "dev" / "infiniband" / "uverbs3").touch()
    assert read_ports(tmp_path, dev=tmp_path / "dev") == (replace(found, rate_gbit_per_s=None),)
    down = replace(found, state="DOWN", counters={**found.counters, "symbol_error": 5})
    window = window_between("", "", 1, NodeState(ports=(found,)), NodeState(ports=(down,)), {})
    assert (window.ports_down, window.ports) == (("mlx5_0/1",), {"mlx5_0/1": {"symbol_error": 2}})


def test_json_there_and_back() -> None:
    state = NodeState(
        devices=(IDLE,),
        topology={"0-1": "NV18"},
        kernel_events=(KernelEvent(kind="xid", bus="0000:17:00", code=79, text="Xid 79", old=True),),
        ports=(NetworkPort(name="mlx5_0/1", state="ACTIVE"),),
        visible=(),
    )
    assert from_json(NodeState, to_json(state)) == state
    assert to_json(NodeState()) == {}
    # A later seatrial may know more fields.
    assert from_json(NodeState, {"source": "NVML 1", "new": [1]}) == NodeState(source="NVML 1")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"devices": {}},
        {"devices": [{"vendor": "nvidia"}]},
        {"devices": [{"vendor": "x", "index": 0, "uuid": "u"}]},
        {"devices": [{"vendor": "amd", "index": "0", "uuid": "u"}]},
        {"devices": [{"vendor": "amd", "index": 0, "uuid": "u", "power_w": float("nan")}]},
        {"devices": [{"vendor": "amd", "index": 0, "uuid": "u", "counters": {"a": 1.5}}]},
        {"devices": [{"vendor": "amd", "index": True, "uuid": "u"}]},
        {"topology": {"0-1": 5}},
        {"visible": ["GPU-1", 3]},
    ],
)
def test_json_of_strangers_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"no object|not as|missing"):
        from_json(NodeState, value)


def test_counts_of_links_that_cannot_be_are_none() -> None:
    """A history of more bits than a number has would make all that a node says unreadable."""
    state = DeviceState(
        vendor="nvidia",
        index=0,
        uuid="GPU-0",
        link_counters={"nvlink_replays": (7, 2**32 - 1, -1, 2**63)},
        nvlink_fec_history=(10**20, *(0 for _ in range(15))),
    )
    found = believable(state)
    assert found.link_counters == {"nvlink_replays": (7, -1, -1, -1)}
    assert (found.nvlink_fec_history, found.unavailable) == ((), {"nvlink_fec_history": "implausible"})
    assert from_json(DeviceState, to_json(found)) == found
