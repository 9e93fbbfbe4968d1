"""The readers of AMD's devices. The answers are minimal ones of our own, in the forms that the modules name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seatrial.devices import amd_smi, amd_sysfs, rocm_smi
from seatrial.devices.amd_values import number, size_bytes
from seatrial.devices.readers import UnreadableError


def watts(value: float) -> dict[str, Any]:
    return {"value": value, "unit": "W"}


def metric(gpu: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the row of a device as ``amd-smi metric --json`` prints it."""
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": {"value": 91, "unit": "%"}},
        "power": {"socket_power": watts(640), "throttle_status": "N/A"},
        "clock": {"gfx_0": {"clk": {"value": 1990, "unit": "MHz"}, "max_clk": {"value": 2100, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 71, "unit": "C"}, "mem": {"value": 60, "unit": "C"}},
        "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": 3},
        "ecc": {"total_correctable_count": 5, "total_uncorrectable_count": 1, "total_deferred_count": "N/A"},
        "mem_usage": {"total_vram": {"value": 196288, "unit": "MB"}, "used_vram": {"value": 288, "unit": "MB"}},
        "throttle": {"ppt_violation_status": "ACTIVE", "hbm_thermal_violation_status": "NOT ACTIVE"},
        **changes,
    }


STATIC = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1234"},
    "bus": {"bdf": "0000:0C:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}},
    "driver": {"name": "amdgpu", "version": "6.10.5"},
    "limit": {"socket_power": watts(750), "slowdown_hotspot_temperature": {"value": 100, "unit": "C"}},
    "partition": {"compute_partition": "DPX"},
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["a bare list", "gpu_data"])
def test_amd_smi_in_both_forms(wrapped: bool) -> None:
    answers = [json.dumps({"gpu_data": [row]} if wrapped else [row]) for row in (metric(), STATIC)]
    (device,) = amd_smi.parse(f"WARNING: not in the group render\n{answers[0]}", answers[1])
    assert (device.model, device.bus, device.uuid, device.driver) == (
        "AMD Instinct MI300X",
        "0000:0c:00",
        "0x1234",
        "6.10.5",
    )
    assert (device.temperature_c, device.margin_k, device.utilization_percent) == (71, 29, 91)
    assert (device.power_w, device.power_limit_w, device.sm_mhz, device.sm_max_mhz) == (640, 750, 1990, 2100)
    assert (device.pcie_generation, device.pcie_width, device.memory_total_bytes) == (5, 16, 196288 << 20)
    assert device.counters == {"ecc_corrected": 5, "ecc_uncorrected": 1, "pcie_replays": 3}
    assert device.unavailable["ecc_deferred"] == "not supported"
    assert device.throttle_reasons == ("power_cap",)
    assert device.mig is True


def test_amd_smi_counts_reasons_in_ticks() -> None:
    # The form of ROCm/amdsmi's CHANGELOG for MI300; each count of a reason is a part of the first one.
    counted = {
        "accumulation_counter": 8213780,
        "prochot_accumulated": 0,
        "ppt_accumulated": 2,
        "socket_thermal_accumulated": {"value": 7, "unit": ""},
        "vr_thermal_accumulated": 9,
        "hbm_thermal_accumulated": "N/A",
        "low_utilization_accumulated": {"xcp_0": [8213744, "N/A"]},
        "ppt_violation_status": "NOT ACTIVE",
    }
    (device,) = amd_smi.parse(json.dumps([metric(throttle=counted)]))
    assert (device.ticks, device.throttled_ticks) == (8213780, {"power_cap": 2, "hw_thermal": 9})
    (device,) = amd_smi.parse(json.dumps([metric(throttle=dict.fromkeys(counted, "N/A"))]))
    assert (device.ticks, device.throttled_ticks, device.unavailable["throttled_ns"]) == (None, {}, "not supported")


@pytest.mark.parametrize(
    ("said", "count"), [("N/A", None), (0, 0), ("NO_ERRORS", 0), ("AMDSMI_XGMI_STATUS_MULTIPLE_ERRORS", 2), (1, 1)]
)
def test_amd_smi_says_errors_of_xgmi_links(said: object, count: int | None) -> None:
    (device,) = amd_smi.parse(json.dumps([metric(xgmi_err=said)]))
    assert device.counters.get("xgmi_errors") == count


def test_amd_smi_where_all_is_missing() -> None:
    row = {"gpu": 1, **dict.fromkeys(("usage", "power", "clock", "temperature", "pcie", "ecc", "throttle"), "N/A")}
    (device,) = amd_smi.parse(json.dumps([row]))
    assert (device.index, device.temperature_c, device.throttle_reasons, device.counters) == (1, None, None, {})
    assert {"temperature_c", "power_w", "ecc_uncorrected"} <= set(device.unavailable)


@pytest.mark.parametrize("answer", ["", "ERROR: no driver", '{"gpu_data": 3}', '[{"gpu": 0', '"text"', "[" * 100_000])
def test_amd_smi_without_a_list_of_devices(answer: str) -> None:
    with pytest.raises(UnreadableError):
        amd_smi.parse(answer)


def test_amd_smi_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("metric", [metric()]), ("static", [STATIC]), ("list", [{"gpu": 0, "uuid": "aa-bb"}])):
        (tmp_path / name).write_text(json.dumps(rows))
    tool = tmp_path / "amd-smi"
    tool.write_text(f'#!/bin/sh\n[ "$2" = --json ] && cat "{tmp_path}/$1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert amd_smi.open_reader(tmp_path).samples is None
    folder = sysfs_tree(tmp_path)
    reader = amd_smi.open_reader(tmp_path)
    assert reader.source == "amd-smi, driver 6.10.5"
    assert reader.samples is not None
    (sample,) = reader.samples()
    assert (sample.uuid, sample.temperature_c, sample.utilization_percent) == ("aa-bb", 61, 98)
    assert (sample.power_w, sample.sm_mhz, sample.pcie_generation, sample.pcie_width) == (641, 1990, 5, 16)
    shutil.rmtree(folder)  # the device is gone
    assert reader.samples()[0].temperature_c is None
    assert [state.uuid for state in reader.states()] == ["aa-bb"]
    (tmp_path / "metric").write_text("the device is gone")
    with pytest.raises(UnreadableError, match="printed no JSON"):
        reader.states()


@pytest.mark.parametrize(("name", "reader"), [("amd-smi", amd_smi), ("rocm-smi", rocm_smi)])
def test_their_lock_is_in_no_file_of_others(
    name: str, reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user could have made it before, in /dev/shm, and the library writes where the pointers in it lead."""
    tool = tmp_path / name
    tool.write_text(f'#!/bin/sh\necho "$RSMI_MUTEX_THREAD_ONLY" >>"{tmp_path}/seen"\necho "[]"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UnreadableError):
        reader.open_reader(tmp_path)
    assert set((tmp_path / "seen").read_text().split()) == {"1"}


def test_rocm_smi() -> None:
    card = {
        "Unique ID": "0x79cc",
        "Temperature (Sensor junction) (C)": "55.0",
        "sclk clock speed:": "(300Mhz)",
        "Max Graphics Package Power (W)": "290.0",
        "Average Graphics Package Power (W)": "36.0",
        "GPU use (%)": "0",
        "PCIe Replay Count": "7",
        "Serial Number": "N/A",
        "PCI Bus": "0000:83:00.0",
        "VRAM Total Memory (B)": "34342961152",
        "Card series": "Arcturus GL-XL [Instinct MI100]",
    }
    said = json.dumps({"card10": {**card, "Unique ID": "0xff"}, "card2": card, "system": {"Driver version": "6.7.0"}})
    first, second = rocm_smi.parse(said)
    assert (first.index, second.index, first.uuid, first.bus) == (2, 10, "0x79cc", "0000:83:00")
    assert (first.temperature_c, first.sm_mhz, first.power_w, first.power_limit_w) == (55, 300, 36, 290)
    assert (first.serial, first.driver, first.counters) == ("", "6.7.0", {"pcie_replays": 7})
    assert first.unavailable["ecc_uncorrected"] == "rocm-smi prints it as a table only"
    with pytest.raises(UnreadableError):
        rocm_smi.parse("rocm-smi: command failed")


def sysfs_tree(tmp_path: Path) -> Path:
    """Return the folder of a device in a made tree of the form of the kernel's documentation."""
    folder = tmp_path / "bus" / "pci" / "devices" / "0000:0c:00.0"
    files = {
        "vendor": "0x1002",
        "class": "0x120000",
        "unique_id": "79ccd55167a2124a",
        "vbios_version": "113-M3000100-102",
        "gpu_busy_percent": "98",
        "mem_info_vram_total": "206141652992",
        "mem_info_vram_used": "297795584",
        "pcie_replay_count": "0",
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "current_compute_partition": "SPX",
        "numa_node": "-1",
        "ras/umc_err_count": "ue: 2\nce: 9",
        "ras/gfx_err_count": "ue: 1\nce: 0",
        "hwmon/hwmon4/temp1_label": "edge",
        "hwmon/hwmon4/temp1_input": "40000",
        "hwmon/hwmon4/temp2_label": "junction",
        "hwmon/hwmon4/temp2_input": "61000",
        "hwmon/hwmon4/temp2_crit": "100000",
        "hwmon/hwmon4/power1_input": "641000000",
        "hwmon/hwmon4/power1_cap": "750000000",
        "hwmon/hwmon4/freq1_input": "1990000000",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    return folder


def test_sysfs(tmp_path: Path) -> None:
    folder = sysfs_tree(tmp_path)
    reader = amd_sysfs.open_reader(tmp_path)
    (device,) = reader.states()
    assert (device.uuid, device.bus, device.numa_node, device.mig) == ("79ccd55167a2124a", "0000:0c:00", None, False)
    assert (device.temperature_c, device.slowdown_c, device.margin_k) == (61, 100, 39)
    assert (device.power_w, device.power_limit_w, device.sm_mhz, device.utilization_percent) == (641, 750, 1990, 98)
    assert (device.pcie_generation, device.pcie_width) == (5, 16)
    assert device.counters == {"ecc_uncorrected": 3, "ecc_corrected": 9, "pcie_replays": 0}
    assert device.unavailable["memory_mhz"] == "not supported"
    assert reader.samples is not None
    (folder / "gpu_busy_percent").write_text("17\n")
    (sample,) = reader.samples()
    assert (sample.uuid, sample.utilization_percent, sample.temperature_c) == (device.uuid, 17, 61)


def test_sysfs_without_a_device(tmp_path: Path) -> None:
    (sysfs_tree(tmp_path) / "vendor").write_text("0x10de\n")
    with pytest.raises(UnreadableError, match="shows no device"):
        amd_sysfs.open_reader(tmp_path)


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "9" * 400, {"value": -(10**400)}])
def test_a_number_that_cannot_be_is_none(value: object) -> None:
    assert number(value) is None


@pytest.mark.parametrize("unit", [["MB"], {}, None, 3, "furlong"])
def test_a_size_in_no_known_unit_is_none(unit: object) -> None:
    assert size_bytes({"value": 3, "unit": unit}) is None
    assert size_bytes({"value": 3, "unit": "MB"}) == 3 << 20
