"""NVIDIA's devices through ``nvidia-smi -q -x`` and ``nvidia-smi nvlink``: where no process of ours can load NVML.

Tags as nvidia-smi 450 to 580 write them; a newer one may write others, which then are missing values. Text stands for
a value with its unit (``29 C``, ``16x``, ``503 MiB``), ``N/A`` for what a device does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

from seatrial.devices import nvlink_text, topology_matrix
from seatrial.devices.nvidia_smi_samples import open_samples
from seatrial.devices.readers import TWIN, Reader, UnreadableError, distinct_uuids, nothing, short_bus
from seatrial.devices.state import LOST, DeviceState
from seatrial.util.tool import find_tool, run_tool

_ARGUMENTS, _LIST = ("-q", "-x"), ("-L",)
_NVLINK_STATES, _NVLINK_ERRORS = ("nvlink", "-s"), ("nvlink", "-e")
_NO_NVLINKS = "nvidia-smi nvlink -s and -e show none"
_MOST_CHARS = 1 << 24
_GPU, _PROCESSES, _END_OF_GPU, _END = "<gpu ", "<processes", "</gpu>", "</nvidia_smi_log>"
_CORRUPT = re.compile(r"infoROM is corrupted at gpu ([0-9a-fA-F:.]+)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,9})?(?!\d)", re.ASCII)
_ATTACHED = re.compile(r"\d{1,9}", re.ASCII)
_LISTED = re.compile(r"^GPU \d+: ", re.ASCII | re.MULTILINE)
_PID_LINE = re.compile(r"^[ \t]*<pid>(\d{1,9})</pid>[ \t]*$", re.ASCII | re.MULTILINE)
_LOST = re.compile(r"device handle for GPU ?([0-9a-fA-F:.]+?):? .{0,40}GPU is lost", re.IGNORECASE)
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "temperature_c": ("temperature/gpu_temp",),
    "memory_temperature_c": ("temperature/memory_temp",),
    "slowdown_c": ("temperature/gpu_temp_slow_threshold",),
    "utilization_percent": ("utilization/gpu_util",),
    "sm_mhz": ("clocks/sm_clock",),
    "sm_max_mhz": ("max_clocks/sm_clock",),
    "memory_mhz": ("clocks/mem_clock",),
    "power_w": ("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
    "power_limit_w": ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
    "power_default_limit_w": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
}
"""Field -> where it stands, newer drivers first."""
_INTEGERS: Mapping[str, tuple[str, ...]] = {
    "pcie_generation": (
        "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    ),
    "pcie_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie_width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
}
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "ecc_corrected": (
        "ecc_errors/volatile/sram_correctable",
        "ecc_errors/volatile/dram_correctable",
        "ecc_errors/volatile/single_bit/total",
    ),
    "ecc_uncorrected": (
        "ecc_errors/volatile/sram_uncorrectable",
        "ecc_errors/volatile/sram_uncorrectable_parity",
        "ecc_errors/volatile/sram_uncorrectable_secded",
        "ecc_errors/volatile/dram_uncorrectable",
        "ecc_errors/volatile/double_bit/total",
    ),
    "ecc_corrected_dram": ("ecc_errors/volatile/dram_correctable",),
    "ecc_corrected_sram": ("ecc_errors/volatile/sram_correctable",),
    "ecc_uncorrected_dram": ("ecc_errors/volatile/dram_uncorrectable",),
    "ecc_uncorrected_sram": (
        "ecc_errors/volatile/sram_uncorrectable",
        "ecc_errors/volatile/sram_uncorrectable_parity",
        "ecc_errors/volatile/sram_uncorrectable_secded",
    ),
    "rows_remapped_corrected": ("remapped_rows/remapped_row_corr",),
    "rows_remapped_uncorrected": ("remapped_rows/remapped_row_unc",),
    "pages_retired": (
        "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages/double_bit_retirement/retired_count",
    ),
    "pcie_replays": ("pci/replay_counter",),
}
"""Counter -> the values whose sum it is, as far as they are there."""
_BROKEN: Mapping[str, str] = {
    "row_remap_pending": "remapped_rows/remapped_row_pending",
    "row_remap_failure": "remapped_rows/remapped_row_failure",
    "channel_repair_pending": "ecc_errors/channel_repair_pending",
    "tpc_repair_pending": "ecc_errors/tpc_repair_pending",
    "sram_threshold": "ecc_errors/aggregate/sram_threshold_exceeded",
    "pages_pending": "retired_pages/pending_retirement",
}
_FABRIC: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fabric_degraded_bandwidth": ("fabric/health/bandwidth", ("degraded",)),
    "fabric_route_recovery": ("fabric/health/route_recovery_in_progress", ("true", "yes")),
    "fabric_route_unhealthy": ("fabric/health/route_unhealthy", ("true", "yes")),
    "fabric_access_timeout": ("fabric/health/access_timeout_recovery", ("true", "yes")),
}
_REASONS: Mapping[str, str] = {
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "power_brake",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "display_clocks_setting": "display_clock",
    "display_clock_setting": "display_clock",
}
_REASON_COUNTERS: Mapping[str, str] = {
    "sw_power_cap": "power_cap",
    "sync_boost": "sync_boost",
    "sw_therm_slowdown": "sw_thermal",
    "hw_therm_slowdown": "hw_thermal",
    "hw_power_brake": "power_brake",
}
_ACTIONS: Mapping[str, str] = {
    "none": "none",
    "gpu reset": "reset",
    "reset": "reset",
    "reboot": "reboot",
    "node reboot": "reboot",
    "drain p2p": "drain p2p",
    "drain and reset": "drain and reset",
    "recover imex domain": "recover imex",
}
_ABSENT = ("", "n/a", "none", "[n/a]", "unknown error", "requested functionality has been deprecated")


def open_reader() -> Reader:
    """Return the reader. Raises UnreadableError."""
    tool = find_tool("nvidia-smi")
    if tool is None:
        raise UnreadableError("nvidia-smi is not installed")

    devices = _read(tool)
    if not devices:
        raise UnreadableError("nvidia-smi shows no device")
    without_links = {} if any(device.nvlinks_active is not None for device in devices) else {"NVLinks": _NO_NVLINKS}
    source = f"nvidia-smi -q -x {devices[0].driver}".strip()
    samples = open_samples(tool, {device.bus: device.uuid for device in devices})
    return Reader(
        source=source,
        states=partial(_read, tool),
        samples=samples.read if samples else None,
        topology=lambda: _topology(tool),
        remarks=lambda: {**without_links, **(samples.remarks() if samples else {})},
        close=samples.close if samples else nothing,
    )


def _read(tool: str) -> tuple[DeviceState, ...]:
    """Return the devices. Raises UnreadableError."""
    # At once: each of them loads the driver's library, which takes a second.
    asked = (_ARGUMENTS, _LIST, _NVLINK_STATES, _NVLINK_ERRORS)
    with ThreadPoolExecutor(max_workers=len(asked)) as pool:
        (code, text), (listing, names), states, errors = pool.map(lambda words: run_tool([tool, *words]), asked)
    if code is None:
        raise UnreadableError("nvidia-smi did not answer in time")
    # It ends with 14 for a device with a corrupt inforom, and writes the whole document all the same.
    if code == 0 or _END in text:
        listed = len(_LISTED.findall(names)) if listing == 0 else None
        links = nvlink_text.parse(*(said if known == 0 else "" for known, said in (states, errors)))
        return tuple(_with_links(device, links) for device in parse(text, listed))
    lost = _LOST.search(text.partition(_PROCESSES)[0])  # the name of a process may say it, too
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    raise UnreadableError(f"nvidia-smi: exit code {code}: {first[:200]}", lost=short_bus(lost[1]) if lost else "")


def _with_links(device: DeviceState, links: Mapping[str, nvlink_text.Links]) -> DeviceState:
    own = links.get(device.uuid) or links.get(str(device.index))
    if own is None:
        return device
    return replace(device, counters={**device.counters, **own.counters()}, **own.values())  # type: ignore[arg-type]


def _topology(tool: str) -> Mapping[str, str]:
    code, text = run_tool([tool, "topo", "-m"])
    return topology_matrix.parse(text) if code == 0 else {}


def parse(text: str, listed: int | None = None) -> tuple[DeviceState, ...]:
    """Return the devices of a document. Sentences before and after the document are warnings of the driver.

    nvidia-smi writes the names of processes as they are, and their users choose them: tags, comments, whole devices.
    No name stands before the first process of a device. So the text from the beginning of a device to there is the
    driver's, if the text has as many beginnings of devices as there are devices; nothing else is read but the numbers
    of processes.

    Args:
        text: the output of ``nvidia-smi -q -x``.
        listed: how many devices ``nvidia-smi -L`` lists, in which no user writes anything; None: it does not say, and
            all that are attached must be there.

    Raises:
        UnreadableError: for text that is no document, that is cut, or in which a device may be made up.
    """
    begin, end = max(0, text.find("<")), text.rfind(_END)
    opening, *gpus = text[begin : end if end >= 0 else None].split(_GPU)
    document = "".join([opening, *map(_without_names, gpus), _END if end >= 0 else ""])
    if "<!ENTITY" in document or len(document) > _MOST_CHARS:
        raise UnreadableError("nvidia-smi -q -x: no document of nvidia-smi")
    try:
        root = ElementTree.fromstring(document)
    except ElementTree.ParseError as error:
        raise UnreadableError(f"nvidia-smi -q -x: cut or damaged ({error})") from error
    attached = root.findtext("attached_gpus", "")
    counted = f"nvidia-smi -L lists {listed}"
    if listed is None:
        listed = int(attached) if _ATTACHED.fullmatch(attached) else 0
        counted = f"{listed} attached"
    if len(gpus) != listed:
        why = "the name of a process may have made one up"
        raise UnreadableError(f"nvidia-smi -q -x: {len(gpus)} devices, but {counted} ({why})")
    driver = root.findtext("driver_version", "")
    warnings = text[:begin] + (text[end + len(_END) :] if end >= 0 else "")
    corrupt = {short_bus(address) for address in _CORRUPT.findall(warnings)}
    devices = [_device(gpu, index, driver, corrupt) for index, gpu in enumerate(root.iter("gpu"))]
    names = distinct_uuids([(device.uuid, device.bus) for device in devices])
    return tuple(
        device if name == device.uuid else replace(device, uuid=name, unavailable={**device.unavailable, "uuid": TWIN})
        for device, name in zip(devices, names, strict=True)
    )


def _without_names(gpu: str) -> str:
    """Return a device without what follows its processes; of these only the numbers stay."""
    known, tag, rest = gpu.partition(_PROCESSES)
    if not tag:
        known, tag, _ = gpu.partition(_END_OF_GPU)
        return f"{_GPU}{known}{tag}"
    pids = "".join(f"<process_info><pid>{pid}</pid></process_info>" for pid in _PID_LINE.findall(rest))
    return f"{_GPU}{known}<processes>{pids}</processes>{_END_OF_GPU}"


def _device(gpu: ElementTree.Element, index: int, driver: str, corrupt: Container[str]) -> DeviceState:
    values: dict[str, object] = {field: _first(gpu, paths, float) for field, paths in _NUMBERS.items()}
    values |= {field: _first(gpu, paths, int) for field, paths in _INTEGERS.items()}
    counters = {name: _sum(gpu, paths) for name, paths in _COUNTERS.items()}
    bus = short_bus(gpu.get("id", ""))
    fabric = _text(gpu, "fabric/state")
    status = _text(gpu, "fabric/status")
    margin, limit = (_number(_text(gpu, f"temperature/gpu_temp{end}")) for end in ("_tlimit", "_slow_tlimit_threshold"))
    lost = "lost" in " ".join(_text(gpu, path) for path in ("product_name", "uuid", "temperature/gpu_temp"))
    found = {
        **values,
        "memory_used_bytes": _mebibytes(gpu, "fb_memory_usage/used"),
        "memory_total_bytes": _mebibytes(gpu, "fb_memory_usage/total"),
        "margin_k": None if margin is None else margin - (limit or 0),
        "counters": {name: count for name, count in counters.items() if count is not None},
        "broken": (
            *(name for name, path in _BROKEN.items() if _text(gpu, path) == "yes"),
            *_fabric_problems(gpu),
            *(["inforom_corrupt"] if bus in corrupt else []),
        ),
        "recovery_action": None
        if (action := _text(gpu, "gpu_recovery_action")) in ("", "n/a")
        else _ACTIONS.get(action, action),
        "ecc_enabled": _flag(gpu, "ecc_mode/current_ecc"),
        "persistence": _flag(gpu, "persistence_mode"),
        "mig": _flag(gpu, "mig_mode/current_mig"),
        "compute_mode": {"exclusive_process": "exclusive process"}.get(mode, mode)
        if (mode := _text(gpu, "compute_mode"))
        else None,
        "fabric_state": None
        if fabric in _ABSENT
        else f"failed: {status}"
        if fabric == "completed" and status not in (*_ABSENT, "success")
        else fabric,
        "throttle_reasons": _reasons(gpu),
        "throttled_ns": _reason_counters(gpu),
        "processes": tuple(int(pid.text or "") for pid in gpu.iterfind("processes/process_info/pid")),
    }
    return DeviceState(
        vendor="nvidia",
        index=index,
        uuid=gpu.findtext("uuid", "") or bus or f"index {index}",
        bus=bus,
        model=gpu.findtext("product_name", ""),
        serial=serial if (serial := gpu.findtext("serial", "")) != "N/A" else "",
        driver=driver,
        vbios=gpu.findtext("vbios_version", ""),
        problem=LOST if lost else "",
        unavailable={name: "nvidia-smi has none" for name, value in found.items() if value is None},
        **found,  # type: ignore[arg-type]
    )


def _text(gpu: ElementTree.Element, path: str) -> str:
    return (gpu.findtext(path) or "").strip().lower()


def _number(text: str) -> float | None:
    match = _NUMBER.match(text)
    return float(match[0]) if match else None


def _first(gpu: ElementTree.Element, paths: tuple[str, ...], kind: Callable[[float], float]) -> float | None:
    numbers = [number for path in paths if (number := _number(_text(gpu, path))) is not None]
    return kind(numbers[0]) if numbers else None


def _sum(gpu: ElementTree.Element, paths: tuple[str, ...]) -> int | None:
    numbers = [number for path in paths if (number := _number(_text(gpu, path))) is not None]
    return int(sum(numbers)) if numbers else None


def _mebibytes(gpu: ElementTree.Element, path: str) -> int | None:
    number = _number(_text(gpu, path))
    return None if number is None else int(number) << 20


def _flag(gpu: ElementTree.Element, path: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(_text(gpu, path))


def _fabric_problems(gpu: ElementTree.Element) -> tuple[str, ...]:
    problems = [name for name, (path, bad) in _FABRIC.items() if _text(gpu, path) in bad]
    configuration = _text(gpu, "fabric/health/incorrect_configuration")
    return (*problems, *(["fabric_configuration"] if configuration not in (*_ABSENT, "false", "no") else []))


def _reasons(gpu: ElementTree.Element) -> tuple[str, ...] | None:
    for prefix in ("clocks_event_reason", "clocks_throttle_reason"):
        group = gpu.find(f"{prefix}s")
        if group is not None:
            return tuple(
                dict.fromkeys(name for end, name in _REASONS.items() if _text(group, f"{prefix}_{end}") == "active")
            )
    return None


def _reason_counters(gpu: ElementTree.Element) -> dict[str, int]:
    group, found = gpu.find("clocks_event_reasons_counters"), dict[str, int]()
    for end, name in _REASON_COUNTERS.items():
        number = None if group is None else _number(_text(group, f"clocks_event_reasons_counters_{end}"))
        if number is not None:
            found[name] = int(number) * 1000
    return found
