"""NVIDIA's devices through NVML, the library behind nvidia-smi, by ctypes.

Names, numbers and layouts are those of nvml.h (NVIDIA/go-nvml, gen/nvml/nvml.h; PyPI nvidia-ml-py 13.615). Every
function may be missing in an older driver, and every answer may be refused: then the value is None, with the reason.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.devices.nvml_fields import (
    BROKEN_FIELDS,
    COUNTER_FIELDS,
    PLAIN_FIELDS,
    RECOVERY_ACTIONS,
    THROTTLE_FIELDS,
    FieldValue,
    fabric_problems,
    read_fields,
)
from seatrial.devices.nvml_links import CorrectionHistory, read_links
from seatrial.devices.nvml_structures import (
    Fabric,
    Margin,
    Memory,
    OldFabric,
    OldMemory,
    OldProcess,
    PciInfo,
    Process,
    Repair,
    Sram,
    Temperature,
    Utilization,
)
from seatrial.devices.plausible import NOT_READ, implausible, is_count
from seatrial.devices.readers import TWIN, Reader, UnreadableError, distinct_uuids, short_bus
from seatrial.devices.state import LOST, RESET_REQUIRED, DeviceSample, DeviceState

LIBRARY = "libnvidia-ml.so.1"
IDLE_BIT = 0x1
REASON_BITS: Mapping[int, str] = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
}
"""nvmlClocksEventReason*, called nvmlClocksThrottleReason* by older drivers, with the same bits; there are no others
but ``IDLE_BIT``."""

_INVALID, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _CORRUPT_INFOROM = 2, 3, 13, 14
_NO_LINK = (_INVALID, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND)
"""Codes that say that there is no such link, now and later."""
ERRORS: Mapping[int, str] = {
    1: "the library was not initialized",
    _INVALID: "not known to this driver",
    _NOT_SUPPORTED: "not supported",
    4: "not permitted",
    5: "the library was initialized before",
    6: "not found",
    7: "too large",
    8: "a power cable is missing",
    9: "the driver is not loaded",
    10: "the driver did not answer in time",
    11: "an interrupt is lost",
    12: "a library of the driver is missing",
    _FUNCTION_NOT_FOUND: "this driver is too old for it",
    _CORRUPT_INFOROM: "the inforom is corrupt",
    15: "the GPU is lost",
    16: "the GPU must be reset",
    17: "the operating system refused it",
    18: "driver and library have different versions",
    19: "in use",
    20: "out of memory",
    21: "no data",
    22: "a virtual GPU without ECC",
    23: "not enough resources",
    24: "no clock of this device",
    25: "this driver has another version of it",
    26: "no longer supported",
    27: "not ready",
    28: "no GPU found",
    29: "the driver is in an invalid state",
    30: "no such reset",
    999: "unknown error of the driver",
}
"""nvmlReturn_t -> words."""
_PROBLEMS: Mapping[int, str] = {8: ERRORS[8], 11: ERRORS[11], 15: LOST, 16: RESET_REQUIRED}
"""Codes that mean a broken device, whichever function returns them -> ``DeviceState.problem``."""
_MOST_DEVICES = 1024
_MOST_PROCESSES = 256
"""On one device."""
_MOST_LINKS = 36
"""NVLinks of a device: 18 up to Blackwell; Blackwell Ultra has 36."""
_TEXT_BYTES = 96
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE and the longest names."""
_TOPOLOGY = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of ``nvidia-smi topo -m``."""
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_VOLATILE = 0
_MEMORY_ERRORS: Mapping[str, tuple[int, int]] = {
    "ecc_corrected_dram": (0, 2),
    "ecc_corrected_sram": (0, 7),
    "ecc_uncorrected_dram": (1, 2),
    "ecc_uncorrected_sram": (1, 7),
}
"""Name of ``COUNTERS`` -> nvmlMemoryErrorType_t and nvmlMemoryLocation_t."""
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}


class Nvml:
    """The library, opened and initialized."""

    def __init__(self, name: str = LIBRARY) -> None:
        """Load it. Raises UnreadableError."""
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise UnreadableError(f"{name} cannot be loaded ({error})") from error
        code = self.call("nvmlInit_v2")
        if code:
            raise UnreadableError(f"NVML: {words_of(code)}")

    def call(self, function: str, *arguments: Any) -> int:
        """Return the code of a call; 13 where the library lacks the function."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return _FUNCTION_NOT_FOUND

    def text(self, function: str, *before: Any) -> tuple[int, str]:
        """Return the code and the text of a function that fills a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self.call(function, *before, buffer, _TEXT_BYTES)
        return code, "" if code else buffer.value.decode(errors="replace")

    def number(self, function: str, *before: Any) -> tuple[int, int]:
        """Return the code and the number of a function that writes one; 64 bits are room for all."""
        value = ctypes.c_ulonglong()
        return self.call(function, *before, ctypes.byref(value)), value.value

    def device_by_uuid(self, uuid: str) -> tuple[int, ctypes.c_void_p]:
        """Return the code and the handle of a device."""
        handle = ctypes.c_void_p()
        return self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle)), handle

    def device_by_bus(self, address: str) -> tuple[int, ctypes.c_void_p]:
        """Return the code and the handle of a device by its PCI address with function."""
        handle = ctypes.c_void_p()
        return self.call("nvmlDeviceGetHandleByPciBusId_v2", address.encode(), ctypes.byref(handle)), handle


def words_of(code: int) -> str:
    """Return an error code in words."""
    return f"{ERRORS.get(code, 'unknown error')} (code {code})"


class _Collected:
    """Values and reasons of one device."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.problem = ""

    def take(self, field: str, code: int, value: Any) -> bool:
        """Keep a value, or the reason why there is none; return whether there is one."""
        if code == 0:
            self.values[field] = value
            return True
        self.refuse(field, code)
        return False

    def refuse(self, field: str, code: int) -> None:
        self.why.setdefault(field, ERRORS.get(code, f"code {code}"))
        self.problem = _PROBLEMS.get(code, self.problem)

    def flag(self, name: str, number: float) -> list[str]:
        """Return the name if a flag of one bit is set; a larger number is none."""
        if number not in (0, 1):
            self.why[name] = implausible(number)
        return [name] * (number == 1)


class _Device:
    """One device: its handle, and the identity that stays known after it is lost."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml, self.index, self.handle = nvml, index, ctypes.c_void_p()
        self.code = nvml.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.handle))
        self.bus = self.uuid = self.model = ""
        if self.code == 0:
            pci = PciInfo()
            if nvml.call("nvmlDeviceGetPciInfo_v3", self.handle, ctypes.byref(pci)) == 0:
                self.bus = short_bus(pci.address.decode(errors="replace"))
            self.uuid = nvml.text("nvmlDeviceGetUUID", self.handle)[1]
            self.model = nvml.text("nvmlDeviceGetName", self.handle)[1]
        self.uuid = self.uuid or self.bus or f"index {index}"
        self.history = CorrectionHistory()
        self.is_twin = False
        """Whether another device has the same UUID."""

    def state(self, driver: str) -> DeviceState:
        found = _Collected()
        if self.is_twin:
            found.why["uuid"] = TWIN
        if self.code:
            found.refuse("device", self.code)
        else:
            _read_plain(self, found)
            _read_structures(self, found)
            _read_fields(self, found)
        return DeviceState(
            vendor="nvidia",
            index=self.index,
            uuid=self.uuid,
            bus=self.bus,
            model=self.model,
            driver=driver,
            problem=found.problem,
            unavailable=found.why,
            **found.values,
        )

    def sample(self) -> DeviceSample:
        nvml, handle, found = self.nvml, self.handle, _Collected()
        if self.code:
            found.refuse("device", self.code)
        else:
            found.take("temperature_c", *temperature(nvml, handle))
            found.take("utilization_percent", *_utilization(nvml, handle))
            found.take("power_w", *_scaled(nvml.number("nvmlDeviceGetPowerUsage", handle), 1000))
            found.take("sm_mhz", *nvml.number("nvmlDeviceGetClockInfo", handle, 1))
            found.take("memory_used_bytes", *_memory(nvml, handle)[:2])
            found.take("pcie_generation", *nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", handle))
            found.take("pcie_width", *nvml.number("nvmlDeviceGetCurrPcieLinkWidth", handle))
            code, bits = reason_bits(nvml, handle)
            found.take("throttle_reasons", code, reason_names(bits))
        return DeviceSample(uuid=self.uuid, problem=found.problem, **found.values)


def open_reader(library: str = LIBRARY) -> Reader:
    """Return the reader. Raises UnreadableError."""
    nvml = Nvml(library)
    driver = nvml.text("nvmlSystemGetDriverVersion")[1]
    code, count = nvml.number("nvmlDeviceGetCount_v2")
    if code:
        raise UnreadableError(f"NVML: {words_of(code)}")
    if not 0 < count <= _MOST_DEVICES:
        raise UnreadableError(f"NVML shows {count or 'no'} device{'s' * (count > 1)}")
    devices = [_Device(nvml, index) for index in range(count)]
    for device, name in zip(devices, distinct_uuids([(device.uuid, device.bus) for device in devices]), strict=True):
        device.uuid, device.is_twin = name, name != device.uuid
    return Reader(
        source=f"NVML {driver}".strip(),
        states=lambda: tuple(device.state(driver) for device in devices),
        samples=lambda: tuple(device.sample() for device in devices),
        topology=lambda: _topology(nvml, devices),
    )


def temperature(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, int]:
    """Return the code and the temperature of the GPU in degrees Celsius."""
    # nvmlDeviceGetTemperature is deprecated from 13.0 on, and older drivers have nothing else.
    versioned = Temperature.new()
    code = nvml.call("nvmlDeviceGetTemperatureV", handle, ctypes.byref(versioned))
    if code in (_FUNCTION_NOT_FOUND, _NOT_SUPPORTED, 25):
        return nvml.number("nvmlDeviceGetTemperature", handle, 0)
    return code, int(versioned.temperature)


def reason_bits(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, int]:
    """Return the code, and the bits of ``REASON_BITS`` and ``IDLE_BIT`` that hold now."""
    code, bits = nvml.number("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if code == _FUNCTION_NOT_FOUND:  # before driver 535
        return nvml.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return code, bits


def reason_names(bits: int) -> tuple[str, ...]:
    """Return the names of ``state.THROTTLE`` for the bits."""
    return tuple(name for bit, name in REASON_BITS.items() if bits & bit)


def _scaled(answer: tuple[int, int], units: int) -> tuple[int, float]:
    return answer[0], answer[1] / units


def _utilization(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, float]:
    rates = Utilization()
    return nvml.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)), float(rates.gpu)


def _memory(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, int, int]:
    """Return the code, the used and the total bytes."""
    memory: Any = Memory.new()
    code = nvml.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
    if code == _FUNCTION_NOT_FOUND:
        memory = OldMemory()
        code = nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return code, int(memory.used), int(memory.total)


_NUMBERS: tuple[tuple[str, str, tuple[int, ...], int], ...] = (
    ("slowdown_c", "nvmlDeviceGetTemperatureThreshold", (1,), 1),
    ("sm_mhz", "nvmlDeviceGetClockInfo", (1,), 1),
    ("sm_max_mhz", "nvmlDeviceGetMaxClockInfo", (1,), 1),
    ("memory_mhz", "nvmlDeviceGetClockInfo", (2,), 1),
    ("power_w", "nvmlDeviceGetPowerUsage", (), 1000),
    ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), 1000),
    ("power_default_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), 1000),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1),
    ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), 1),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), 1),
)
"""Field, function, arguments before the number, units in one of ours."""


def _read_plain(device: _Device, found: _Collected) -> None:
    nvml, handle = device.nvml, device.handle
    found.take("serial", *nvml.text("nvmlDeviceGetSerial", handle))
    found.take("vbios", *nvml.text("nvmlDeviceGetVbiosVersion", handle))
    for field, function, before, units in _NUMBERS:
        code, value = nvml.number(function, handle, *before)
        found.take(field, code, value if units == 1 else value / units)
    code, mode = nvml.number("nvmlDeviceGetComputeMode", handle)
    found.take("compute_mode", code, _COMPUTE_MODES.get(mode, f"mode {mode}"))
    code, mode = nvml.number("nvmlDeviceGetPersistenceMode", handle)
    found.take("persistence", code, bool(mode))
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = nvml.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    found.take("mig", code, bool(current.value))
    current = ctypes.c_uint()
    code = nvml.call("nvmlDeviceGetEccMode", handle, ctypes.byref(current), ctypes.byref(pending))
    found.take("ecc_enabled", code, bool(current.value))
    code, bits = reason_bits(nvml, handle)
    found.take("throttle_reasons", code, reason_names(bits))


def _read_structures(device: _Device, found: _Collected) -> None:
    nvml, handle = device.nvml, device.handle
    found.take("temperature_c", *temperature(nvml, handle))
    margin = Margin.new()
    found.take("margin_k", nvml.call("nvmlDeviceGetMarginTemperature", handle, ctypes.byref(margin)), margin.margin)
    found.take("utilization_percent", *_utilization(nvml, handle))
    code, used, total = _memory(nvml, handle)
    if found.take("memory_used_bytes", code, used):
        found.values["memory_total_bytes"] = total
    found.take("processes", *_processes(nvml, handle))
    broken = _read_fabric(nvml, handle, found)
    repair, sram = Repair.new(), Sram.new()
    for field, function, into in (
        ("channel_repair_pending", "nvmlDeviceGetRepairStatus", repair),
        ("sram_threshold", "nvmlDeviceGetSramEccErrorStatus", sram),
    ):
        if code := nvml.call(function, handle, ctypes.byref(into)):
            found.refuse(field, code)
    broken += found.flag("channel_repair_pending", repair.channel) + found.flag("tpc_repair_pending", repair.tpc)
    broken += found.flag("sram_threshold", sram.threshold_exceeded)
    broken += ["inforom_corrupt"] * (nvml.call("nvmlDeviceValidateInforom", handle) == _CORRUPT_INFOROM)
    code, pending = nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    broken += found.flag("pages_pending", 0 if code else pending)
    found.values["broken"] = tuple(broken)


def _read_fabric(nvml: Nvml, handle: ctypes.c_void_p, found: _Collected) -> list[str]:
    """Read the state of the NVLink fabric, and return the names of ``state.BROKEN`` that hold there."""
    fabric: Any = Fabric.new()
    code = nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(fabric))
    if code == _FUNCTION_NOT_FOUND:  # before driver 535, without the health mask
        fabric = OldFabric()
        code = nvml.call("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(fabric))
    if code:
        found.refuse("fabric_state", code)
        return []
    if fabric.state not in _FABRIC_STATES:
        found.values["fabric_state"] = f"state {fabric.state}"
        return ["fabric_unknown"]
    found.values["fabric_state"] = _FABRIC_STATES[fabric.state]
    if _FABRIC_STATES[fabric.state] != "completed":
        return []
    if fabric.status:
        found.values["fabric_state"] = f"failed: {ERRORS.get(fabric.status, f'code {fabric.status}')}"
    if any(fabric.cluster):
        found.values["fabric_clique"] = f"{bytes(fabric.cluster).hex()}.{fabric.clique}"
    return list(fabric_problems(fabric.health))


def _processes(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, tuple[int, ...]]:
    # Since driver 510, since 455, and before; the first two are of the same layout.
    kinds: tuple[tuple[str, Any], ...] = (("_v3", Process), ("_v2", Process), ("", OldProcess))
    for version, kind in kinds:
        count, entries = ctypes.c_uint(_MOST_PROCESSES), (kind * _MOST_PROCESSES)()
        name = f"nvmlDeviceGetComputeRunningProcesses{version}"
        code = nvml.call(name, handle, ctypes.byref(count), ctypes.byref(entries))
        if code != _FUNCTION_NOT_FOUND:
            return code, tuple(int(entry.pid) for entry in entries[: min(count.value, _MOST_PROCESSES)])
    return _FUNCTION_NOT_FOUND, ()


def _read_fields(device: _Device, found: _Collected) -> None:
    nvml, handle = device.nvml, device.handle
    links = _links(nvml, handle, found)
    wanted = [(field, 0) for field in (*PLAIN_FIELDS, *COUNTER_FIELDS, *BROKEN_FIELDS, *THROTTLE_FIELDS)]

    def ask(fields: Any, count: int) -> int:
        return nvml.call("nvmlDeviceGetFieldValues", handle, count, fields)

    code, values = read_fields(ask, wanted)
    if code:
        found.refuse("counters", code)
        return
    counters, throttled, broken = dict[str, int](), dict[str, int](), list(found.values["broken"])
    for (field, _), value in zip(wanted, values, strict=True):
        name = COUNTER_FIELDS.get(field) or PLAIN_FIELDS.get(field, "")
        name = name or THROTTLE_FIELDS.get(field) or BROKEN_FIELDS.get(field, "")
        if value.code:
            found.refuse(name, value.code)
        elif not math.isfinite(value.number) or (field in COUNTER_FIELDS and not is_count(value.number)):
            found.why[name] = implausible(value.number)
        elif field in COUNTER_FIELDS:
            counters[name] = counters.get(name, 0) + int(value.number)
        elif field in THROTTLE_FIELDS:
            throttled[name] = int(value.number)
        elif field in BROKEN_FIELDS:
            broken += found.flag(name, value.number)
        else:
            _PLAIN[name](found, value)
    for name, (error, location) in _MEMORY_ERRORS.items():
        code, number = nvml.number("nvmlDeviceGetMemoryErrorCounter", handle, error, _VOLATILE, location)
        if code:
            found.refuse(name, code)
        else:
            counters[name] = number
    if throttled.keys() & {"sw_thermal", "hw_thermal"}:
        throttled.pop("thermal", None)  # it counts both of them
    by_link, wrong = read_links(ask, links, found.refuse)
    counters |= {name: sum(count for count in counts if count != NOT_READ) for name, counts in by_link.items()}
    found.why |= wrong
    found.values["nvlink_fec_history"], why = device.history.read(ask, links)
    if why:
        found.why["nvlink_fec_history"] = why
    # A sum of which one part cannot be true is none.
    counters = {name: count for name, count in counters.items() if name not in found.why}
    found.values |= {"counters": counters, "throttled_ns": throttled, "broken": tuple(broken), "link_counters": by_link}
    if "slowdown_limit" in found.values:
        # Both count down to 0 at the highest temperature; the device slows down at the slowdown limit.
        limit = found.values.pop("slowdown_limit")
        if "margin_k" in found.values:
            found.values["margin_k"] -= limit
    elif "margin_k" in found.values and found.values.get("slowdown_c"):
        found.values["margin_k"] = found.values["slowdown_c"] - found.values.get("temperature_c", 0)


def _recovery(found: _Collected, value: FieldValue) -> None:
    found.values["recovery_action"] = RECOVERY_ACTIONS.get(int(value.number), f"action {int(value.number)}")


def _link_speed(found: _Collected, value: FieldValue) -> None:
    found.values["nvlink_gbps"] = value.number / 1000 or None


def _memory_temperature(found: _Collected, value: FieldValue) -> None:
    found.values["memory_temperature_c"] = value.number or None


def _slowdown_limit(found: _Collected, value: FieldValue) -> None:
    found.values["slowdown_limit"] = value.number


_PLAIN: Mapping[str, Callable[[_Collected, FieldValue], None]] = {
    "recovery_action": _recovery,
    "nvlink_gbps": _link_speed,
    "memory_temperature_c": _memory_temperature,
    "slowdown_limit": _slowdown_limit,
}


def _links(nvml: Nvml, handle: ctypes.c_void_p, found: _Collected) -> list[int]:
    """Read which NVLinks there are and which of them are active, and return their numbers."""
    code, states = _link_states(nvml, handle)
    if states:
        found.values |= {"nvlinks": len(states), "nvlinks_active": sum(states.values())}
    else:
        found.refuse("nvlinks", code)
    return [link for link, active in states.items() if active]


def _link_states(nvml: Nvml, handle: ctypes.c_void_p) -> tuple[int, dict[int, bool]]:
    """Return number -> whether it is active; where there are none, the code that says why.

    A model may lack some of the links of its kind, the first ones too; a number beyond them all is an invalid argument.
    After any other error nothing is known: a link that the driver could not read now is not lost.
    """
    first, states = 0, dict[int, bool]()
    for link in range(_MOST_LINKS):
        code, active = nvml.number("nvmlDeviceGetNvLinkState", handle, link)
        first = first or code
        if code == 0:
            states[link] = bool(active)
        elif code in (_INVALID, _FUNCTION_NOT_FOUND):
            break
        elif code != _NOT_SUPPORTED:
            return code, {}
    return first, states


def _topology(nvml: Nvml, devices: list[_Device]) -> dict[str, str]:
    """Return how each pair is connected: NVLinks count where both ends have active ones to one another."""
    answer = dict[str, str]()
    remote = [_remote_ends(nvml, device) for device in devices]
    buses = {device.bus for device in devices}
    for one in devices:
        for other in devices[one.index + 1 :]:
            mine, theirs = remote[one.index], remote[other.index]
            if mine is None or theirs is None:
                continue
            direct = mine.get(other.bus, 0)
            if not direct and mine and not mine.keys() & buses:
                # All links end at switches, and those connect every device with links.
                direct = min(sum(mine.values()), sum(theirs.values()))
            if direct:
                answer[f"{one.index}-{other.index}"] = f"NV{direct}"
                continue
            code, level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
            if code == 0 and level in _TOPOLOGY:
                answer[f"{one.index}-{other.index}"] = _TOPOLOGY[level]
    return answer


def _remote_ends(nvml: Nvml, device: _Device) -> dict[str, int] | None:
    """Return PCI address at the other end -> number of active NVLinks; None where not all could be read."""
    ends = dict[str, int]()
    code, states = _link_states(nvml, device.handle)
    if not states:
        return ends if code in _NO_LINK else None
    for link in (link for link, active in states.items() if active):
        pci = PciInfo()
        code = nvml.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device.handle, link, ctypes.byref(pci))
        if code not in (0, *_NO_LINK):
            return None
        if code == 0:
            bus = short_bus(pci.address.decode(errors="replace"))
            ends[bus] = ends.get(bus, 0) + 1
    return ends
