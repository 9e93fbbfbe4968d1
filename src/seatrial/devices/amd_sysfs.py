"""AMD's devices through the files of the driver amdgpu in sysfs, for a node without AMD's tools.

Files and units: Documentation/gpu/amdgpu of the Linux kernel (driver-misc, thermal, ras). To read them is cheap: the
samples of each second come from here, whichever source has the states.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from seatrial.devices.amd_values import ABSENT, PCIE_GENERATIONS, number, text, whole
from seatrial.devices.readers import Reader, UnreadableError, short_bus
from seatrial.devices.state import DeviceSample, DeviceState

_CLASSES = ("0x0302", "0x0380", "0x1200")
"""PCI classes of accelerators; a VGA device may be the display of a desktop."""


class _Folder:
    """The files of a device; ``why`` has the reason for each one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.why: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        try:
            with (self.path / name).open(encoding="utf-8", errors="replace") as file:
                return file.read(4096).strip()
        except PermissionError:
            self.why[name] = "not permitted"
        except FileNotFoundError:
            self.why[name] = ABSENT
        except OSError as error:  # a device that sleeps or has fallen off answers with an error
            self.why[name] = (error.strerror or str(error)).lower()
        return None

    def number(self, name: str, scale: float = 1.0) -> float | None:
        found = number(self.read(name))
        return None if found is None else found / scale


def open_reader(sysfs: Path = Path("/sys")) -> Reader:
    """Return the reader. Raises UnreadableError."""
    folders = sorted(_folders(sysfs))
    if not folders:
        raise UnreadableError(f"the driver amdgpu shows no device in {sysfs / 'bus' / 'pci' / 'devices'}")
    driver = _Folder(sysfs / "module" / "amdgpu").read("version") or ""

    def states() -> tuple[DeviceState, ...]:
        return tuple(read_device(path, index, driver) for index, path in enumerate(folders))

    return Reader(
        source=f"amdgpu {driver} in sysfs".replace("  ", " "),
        states=states,
        samples=open_samples(states(), sysfs),
        topology=dict,
    )


def open_samples(
    devices: Iterable[DeviceState], sysfs: Path = Path("/sys")
) -> Callable[[], tuple[DeviceSample, ...]] | None:
    """Return what reads the samples of devices, found by their PCI addresses; None: the driver shows none of them.

    Of the partitions of a device, which share its sensors, the first one has them.
    """
    uuids = dict[str, str]()
    for device in devices:
        uuids.setdefault(device.bus, device.uuid)
    places = [
        (uuids[bus], _Folder(path), _sensors(path))
        for path in sorted(_folders(sysfs))
        if (bus := short_bus(path.name)) in uuids
    ]
    hot = [_hot_sensor(sensors) for _, _, sensors in places]

    def samples() -> tuple[DeviceSample, ...]:
        return tuple(
            DeviceSample(uuid=uuid, **_moment(folder, sensors, sensor))
            for (uuid, folder, sensors), sensor in zip(places, hot, strict=True)
        )

    return samples if places else None


def _folders(sysfs: Path) -> list[Path]:
    """Return the folders of devices that amdgpu drives for computing: those with VRAM."""
    found = []
    for path in (sysfs / "bus" / "pci" / "devices").glob("*"):
        with contextlib.suppress(OSError):
            is_ours = (path / "vendor").read_text().strip() == "0x1002" and (path / "class").read_text()[:6] in _CLASSES
            if is_ours and (path / "mem_info_vram_total").exists():
                found.append(path)
    return found


def _sensors(path: Path) -> _Folder:
    return _Folder(next((path / "hwmon").glob("hwmon*"), path / "hwmon" / "none"))


def _moment(folder: _Folder, sensors: _Folder, hot: str) -> dict[str, Any]:
    """Return the values of a sample."""
    return {
        "temperature_c": sensors.number(f"{hot}_input", 1e3) if hot else None,
        "utilization_percent": folder.number("gpu_busy_percent"),
        "sm_mhz": sensors.number("freq1_input", 1e6),
        "power_w": _first(sensors.number("power1_average", 1e6), sensors.number("power1_input", 1e6)),
        "memory_used_bytes": whole(folder.read("mem_info_vram_used")),
        "pcie_generation": _generation(folder.read("current_link_speed")),
        "pcie_width": whole(folder.read("current_link_width")),
    }


def read_device(path: Path, index: int, driver: str) -> DeviceState:
    """Return the state of the device whose folder this is."""
    folder, sensors = _Folder(path), _sensors(path)
    hot, memory = _hot_sensor(sensors), _sensor(sensors, "mem")
    values: dict[str, Any] = {
        **_moment(folder, sensors, hot),
        "memory_temperature_c": sensors.number(f"{memory}_input", 1e3) if memory else None,
        "slowdown_c": (sensors.number(f"{hot}_crit", 1e3) or None) if hot else None,
        "memory_mhz": sensors.number("freq2_input", 1e6),
        "power_limit_w": sensors.number("power1_cap", 1e6),
        "power_default_limit_w": sensors.number("power1_cap_default", 1e6),
        "memory_total_bytes": whole(folder.read("mem_info_vram_total")),
        "pcie_generation_max": _generation(folder.read("max_link_speed")),
        "pcie_width_max": whole(folder.read("max_link_width")),
    }
    if values["slowdown_c"] is not None and values["temperature_c"] is not None:
        values["margin_k"] = values["slowdown_c"] - values["temperature_c"]
    counters = _errors(path / "ras")
    if (replays := whole(folder.read("pcie_replay_count"))) is not None:
        counters["pcie_replays"] = replays
    bus, identity = short_bus(path.name), text(folder.read("unique_id"))
    mode = text(folder.read("current_compute_partition"))
    numa = number(folder.read("numa_node"))
    refused = sorted(name for name, why in {**folder.why, **sensors.why}.items() if why != ABSENT)
    reason = f"not supported, or not readable ({', '.join(refused)[:200]})" if refused else ABSENT
    unavailable = {name: reason for name, value in values.items() if value is None}
    if "ecc_uncorrected" not in counters:
        unavailable["ecc_uncorrected"] = unavailable["ecc_corrected"] = reason
    return DeviceState(
        vendor="amd",
        index=index,
        uuid=identity or bus,
        bus=bus,
        model=text(folder.read("product_name")),
        serial=text(folder.read("serial_number")),
        driver=driver[:100],
        vbios=text(folder.read("vbios_version")),
        numa_node=int(numa) if numa is not None and numa >= 0 else None,
        counters=counters,
        mig=mode.upper() != "SPX" if mode else None,
        unavailable=unavailable,
        **values,
    )


def _hot_sensor(sensors: _Folder) -> str:
    return _sensor(sensors, "junction") or _sensor(sensors, "edge")


def _sensor(sensors: _Folder, label: str) -> str:
    """Return the name of the temperature sensor with this label; empty where there is none."""
    for file in sorted(sensors.path.glob("temp*_label")):
        if sensors.read(file.name) == label:
            return file.name.removesuffix("_label")
    return ""


def _errors(ras: Path) -> dict[str, int]:
    """Return the counters of memory errors, summed over the blocks: lines ``ue: 0`` and ``ce: 0`` of a file each."""
    counters = dict[str, int]()
    for file in ras.glob("*_err_count"):
        for kind, count in re.findall(r"^(ue|ce|de): ?(\d{1,18})$", _Folder(ras).read(file.name) or "", re.MULTILINE):
            name = {"ue": "ecc_uncorrected", "ce": "ecc_corrected", "de": "ecc_deferred"}[kind]
            counters[name] = counters.get(name, 0) + int(count)
    return counters


def _generation(speed: str | None) -> int | None:
    """Return the generation of ``16.0 GT/s PCIe``."""
    found = number((speed or "").partition(" ")[0])
    return None if found is None else PCIE_GENERATIONS.get(found)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
