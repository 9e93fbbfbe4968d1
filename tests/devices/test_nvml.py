"""The NVML reader on a double of the library, by C's rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from by_day import by_day
from devices import nvml_double
from devices.nvml_double import Answers, h100

from seatrial.devices.node_state import window_between
from seatrial.devices.nvml import ERRORS, open_reader
from seatrial.devices.nvml_fields import fabric_problems
from seatrial.devices.readers import Reader, UnreadableError, short_bus
from seatrial.devices.state import NodeState

Machine = Callable[..., Reader]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv(nvml_double.VARIABLE, str(tmp_path / "answers"))

    def start(*devices: Answers, **system: object) -> Reader:
        nvml_double.write(tmp_path / "answers", devices, **system)
        return open_reader(str(library))

    return start


def test_a_healthy_device(machine: Machine) -> None:
    reader = machine(h100(0), h100(1))
    assert reader.source == "NVML 580.105.08"
    first, second = reader.states()
    assert (first.model, first.bus, second.bus) == ("NVIDIA H100 80GB HBM3", "0000:17:00", "0000:18:00")
    assert (first.temperature_c, first.margin_k, first.memory_temperature_c) == (29, 60, 37)
    assert (first.power_w, first.power_limit_w, first.sm_max_mhz) == (68.92, 700, 1980)
    assert (first.nvlinks, first.nvlinks_active, first.nvlink_gbps) == (18, 18, 26.562)
    assert (first.counters["pcie_replays"], second.counters["pcie_replays"]) == (106, 107)
    # The time below the application clocks, for whatever reason, is no reason.
    assert {name: value for name, value in first.throttled_ns.items() if value} == {"power_cap": 7_015_662_857_000}
    assert (first.broken, first.problem, first.recovery_action, first.fabric_state) == ((), "", "none", "completed")
    assert (first.mig, first.ecc_enabled, first.persistence, first.compute_mode) == (False, True, True, "default")
    assert (first.processes, first.throttle_reasons) == ((), ())
    # An H100 has none of the counters of NVLink 5, and this one's slowdown is only known as a margin.
    assert first.unavailable["slowdown_c"] == "not supported"
    assert first.counters.keys() & {"nvlink_replays", "nvlink_integrity_errors"} == {"nvlink_replays"}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"field__145": 1}, ("row_remap_failure",)),
        ({"field__144": 1}, ("row_remap_pending",)),
        ({"repair__channel": 1, "repair__tpc": 1}, ("channel_repair_pending", "tpc_repair_pending")),
        ({"sram__exceeded": 1}, ("sram_threshold",)),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, ("pages_pending",)),
        ({"fabric__health": 0b01}, ("fabric_degraded_bandwidth",)),
        ({"fabric__health": 5 << 8}, ("fabric_configuration",)),
        ({"fabric__state": 4}, ("fabric_unknown",)),
    ],
)
def test_broken_states(machine: Machine, changes: Answers, broken: tuple[str, ...]) -> None:
    (state,) = machine(h100(0, **changes)).states()
    assert state.broken == broken


def test_a_lost_device_keeps_its_name(machine: Machine) -> None:
    reader = machine(h100(0), h100(1))
    uuid = reader.states()[1].uuid
    machine(h100(0), {**h100(1), "*": "!15"})
    healthy, lost = reader.states()
    assert (healthy.problem, lost.problem, lost.uuid) == ("", "lost", uuid)
    assert reader.samples is not None
    assert [sample.problem for sample in reader.samples()] == ["", "lost"]
    machine(h100(0), {**h100(1), "*": "!16"})
    assert reader.states()[1].problem == "reset required"


@pytest.mark.parametrize(("code", "why"), [(21, "no data"), (4, "not permitted"), (999, "unknown error of")])
def test_each_refusal_has_its_reason(machine: Machine, code: int, why: str) -> None:
    (state,) = machine(h100(0, nvmlDeviceGetPowerUsage=f"!{code}", fields=f"!{code}")).states()
    assert (state.power_w, state.counters) == (None, {})
    assert all(state.unavailable[name].startswith(why) for name in ("power_w", "counters"))


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ({"nvmlInit_v2": "!18"}, "different versions"),
        ({"nvmlInit_v2": "!9"}, "not loaded"),
        ({"count": "!4"}, "not permitted"),
        ({"count": 0}, "no device"),
    ],
)
def test_a_driver_that_shows_nothing(machine: Machine, system: Answers, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        machine(h100(0), **system)


@pytest.mark.parametrize("oldest", [False, True], ids=["driver 525", "driver 450"])
def test_an_old_driver_lacks_functions(oldest: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        *(["nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGpuFabricInfo"] if oldest else []),
    )
    library = nvml_double.build(tmp_path, without=new)
    monkeypatch.setenv(nvml_double.VARIABLE, str(tmp_path / "answers"))
    changes = {"nvmlDeviceGetCurrentClocksThrottleReasons": 0x88, "nvmlDeviceGetTemperatureThreshold__1": 87}
    answers = h100(0, processes="11 12", fabric__status=23, field__75=5, **changes)
    newer = ("field.269", "field.270")
    nvml_double.write(tmp_path / "answers", [{name: value for name, value in answers.items() if name not in newer}])
    (state,) = open_reader(str(library)).states()
    assert (state.temperature_c, state.slowdown_c, state.margin_k) == (29, 87, None)
    assert state.throttle_reasons == ("hw_slowdown", "power_brake")
    assert state.memory_used_bytes == 503316480
    assert (state.processes, state.throttled_ns["thermal"]) == ((11, 12), 5)
    known = state.unavailable["fabric_state"] if oldest else state.fabric_state
    assert known == ("this driver is too old for it" if oldest else "failed: not enough resources")


def test_a_driver_that_counts_each_slowdown_by_heat(machine: Machine) -> None:
    (state,) = machine(h100(0, field__75=5)).states()
    assert state.throttled_ns.keys() & {"thermal", "sw_thermal", "hw_thermal"} == {"sw_thermal", "hw_thermal"}


def test_without_the_library(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be loaded"):
        open_reader(str(tmp_path / "libnvidia-ml.so.1"))


def test_a_model_that_lacks_the_first_links_of_its_kind(machine: Machine) -> None:
    (state,) = machine(h100(0, links__absent=6)).states()
    assert (state.nvlinks, state.nvlinks_active) == (12, 12)
    assert len(state.link_counters["nvlink_crc_errors"]) == 18


@pytest.mark.parametrize("link", by_day([0, 5, 17], 2))
@pytest.mark.parametrize("code", [4, 6, 10, 21, 27, 999])
def test_a_passing_error_of_one_link_is_no_lost_link(machine: Machine, link: int, code: int) -> None:
    """Before, after, and where a link leads to: a number that is not known is smaller than none."""
    whole, broken = h100(0), h100(0, **{f"links__{link}": f"!{code}"})
    (before,), (after,) = machine(whole).states(), machine(broken).states()
    assert (before.nvlinks_active, after.nvlinks, after.nvlinks_active) == (18, None, None)
    assert after.unavailable["nvlinks"] == ERRORS[code]
    for one, other in ((before, after), (after, before)):
        window = window_between("a", "b", 1.0, NodeState(devices=(one,)), NodeState(devices=(other,)), {})
        assert [device.nvlinks_lost for device in window.devices] == [0]
        assert [device.fec_risen for device in window.devices] == [()]
    assert machine(broken, h100(1)).topology() == {}
    assert machine(h100(0, **{f"remote__{link}": f"!{code}"}), h100(1)).topology() == {}


def test_topology(machine: Machine) -> None:
    switched = machine(h100(0), h100(1, links__inactive=2))
    assert switched.topology() == {"0-1": "NV16"}
    without = [{key: value for key, value in h100(index).items() if key != "links"} for index in (0, 1)]
    assert machine({**without[0], "ancestor.1": 40}, without[1]).topology() == {"0-1": "NODE"}


@pytest.mark.parametrize(
    ("mask", "problems"),
    [
        (0, ()),
        (0b10101010 | 1 << 8, ()),
        (0b01010100, ("fabric_route_recovery", "fabric_route_unhealthy", "fabric_access_timeout")),
    ],
)
def test_the_health_mask(mask: int, problems: tuple[str, ...]) -> None:
    assert fabric_problems(mask) == problems


@pytest.mark.parametrize(
    ("address", "bus"),
    [("00000000:17:00.0", "0000:17:00"), ("PCI:0000:C1:00", "0000:c1:00"), ("0d:00", "0000:0d:00"), ("N/A", "")],
)
def test_addresses_on_the_bus(address: str, bus: str) -> None:
    assert short_bus(address) == bus
