"""Snapshots of a node, and the changes between two of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from seatrial.devices import network_ports
from seatrial.devices.kernel_log import KMSG, open_log
from seatrial.devices.nvml_links import risen_by_link
from seatrial.devices.plausible import believable, believable_sample
from seatrial.devices.readers import Reader, UnreadableError, open_readers
from seatrial.devices.state import (
    LOST,
    DeviceSample,
    DeviceState,
    DeviceWindow,
    NetworkPort,
    NodeState,
    NodeWindow,
    Vendor,
)

_VARIABLES: Mapping[Vendor, tuple[tuple[str, ...], ...]] = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Vendor -> groups of variables; the first one of a group that is set counts, in what the earlier groups leave."""
_LIBRARY = re.compile(r"/lib[nr]ccl\.so[.0-9]*$")
_MOST_PROCESSES = 20_000
_MOST_MAPS_CHARS = 1 << 22
"""Ten times what a process with torch and CUDA has."""
_BY_HEAT = {"sw_thermal", "hw_thermal"}
_SLOWDOWN_C = (60, 150)
"""Between them lies the slowdown temperature of every device. A driver that says 0 K for a margin that it does not know
would make one of any temperature."""


class NodeReader:
    """Everything that this node can say about its devices, opened once."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        expected: Vendor | None = None,
        sysfs: Path = Path("/sys"),
        kernel_log: str = KMSG,
        readers: tuple[Reader, ...] | None = None,
    ) -> None:
        """Open the sources. ``expected``: the vendor whose devices the ranks use; ``readers``: open already."""
        self._environ, self._sysfs = environ, sysfs
        self._readers, self._not_checked = (readers, {}) if readers else open_readers(sysfs, expected=expected)
        self._last: dict[str, tuple[DeviceState, ...]] = {}
        self._log, why = open_log(kernel_log)
        if self._readers:
            if why:
                self._not_checked["kernel log"] = why
            for reader in self._readers:
                if reader.samples is None:
                    self._not_checked[f"samples of {reader.source}"] = "this source gives none"

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The sources that answer."""
        return self._readers

    def snapshot(self, *, topology: bool = False) -> NodeState:
        """Read everything; ``topology`` too, which may take a second."""
        not_checked = dict(self._not_checked)
        devices, silent = list[DeviceState](), dict[str, str]()
        for reader in self._readers:
            states, why = self._states(reader)
            devices += states
            if why:
                silent[f"devices by {reader.source}"] = why
            not_checked |= reader.remarks()
        not_checked |= silent
        events = self._log.read() if self._log else ()
        if self._log and self._log.was_cut:
            not_checked["a part of the kernel log"] = (
                "it was overwritten, cut or replaced before it was read, or too long"
            )
        return NodeState(
            devices=tuple(devices),
            source=", ".join(reader.source for reader in self._readers),
            topology={pair: how for reader in self._readers if topology for pair, how in reader.topology().items()},
            kernel_events=events if devices or not_checked else (),
            ports=network_ports.read_ports(self._sysfs),
            visible=_visible(devices, self._environ),
            not_checked=not_checked,
            silent=bool(silent),
        )

    def _states(self, reader: Reader) -> tuple[tuple[DeviceState, ...], str]:
        """Return the states, and why they are the last ones that are known."""
        try:
            self._last[reader.source] = tuple(self._placed(believable(state)) for state in reader.states())
        except UnreadableError as error:
            last = self._last.get(reader.source, ())
            return tuple(
                replace(state, problem=LOST) if error.lost and state.bus == error.lost else state for state in last
            ), str(error)
        return self._last[reader.source], ""

    def _placed(self, state: DeviceState) -> DeviceState:
        """Return a state with the NUMA node that the kernel names: few drivers know it, or they mean their own one."""
        file = self._sysfs / "bus" / "pci" / "devices" / f"{state.bus}.0" / "numa_node"
        with contextlib.suppress(OSError, ValueError):
            if state.bus and (numa_node := int(file.read_text())) >= 0:
                return replace(state, numa_node=numa_node)
        return state

    def close(self) -> None:
        """End what the sources have started."""
        for reader in self._readers:
            reader.close()

    def samples(self) -> dict[str, DeviceSample]:
        """Return a sample of each device that can be sampled, by UUID."""
        return {
            sample.uuid: believable_sample(sample)
            for reader in self._readers
            if reader.samples is not None
            for sample in reader.samples()
        }


def _visible(devices: Sequence[DeviceState], environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the UUIDs of the devices that the visibility variable leaves; a slice (MIG) leaves all devices with MIG.

    A name in it that matches no device ends the list, as torch has it.
    """
    groups = [group for vendor in {device.vendor for device in devices} for group in _VARIABLES[vendor]]
    values = [environ[known[0]] for group in groups if (known := [name for name in group if name in environ])]
    left = list(devices)
    for value in values:
        left = _left_by(value, left)
    return tuple(dict.fromkeys(device.uuid for device in left)) if values else None


def _left_by(value: str, devices: Sequence[DeviceState]) -> list[DeviceState]:
    left = list[DeviceState]()
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            found = [device for device in devices if device.mig]
        elif entry.startswith("GPU-"):
            found = [device for device in devices if device.uuid.startswith((entry, entry.removeprefix("GPU-")))]
        else:
            found = [device for number, device in enumerate(devices) if str(number) == entry]
        if not found:
            break
        left += found
    return left


def window_between(
    check: str,
    stage: str,
    seconds: float,
    first: NodeState,
    last: NodeState,
    samples: Mapping[str, Sequence[DeviceSample]],
) -> NodeWindow:
    """Return what changed between two snapshots, with the samples between them."""
    before = {device.uuid: device for device in first.devices}
    ports = {port.name: port for port in first.ports}
    risen = {port.name: _risen(ports[port.name].counters, port.counters) for port in last.ports if port.name in ports}
    return NodeWindow(
        check=check,
        stage=stage,
        seconds=round(seconds, 3),
        devices=tuple(
            _device_window(before[device.uuid], device, samples.get(device.uuid, ()))
            for device in last.devices
            if device.uuid in before
        ),
        kernel_events=last.kernel_events,
        ports={name: changes for name, changes in risen.items() if changes},
        ports_down=_ports_down(ports, last.ports),
    )


def _ports_down(before: Mapping[str, NetworkPort], after: Iterable[NetworkPort]) -> tuple[str, ...]:
    states = {port.name: port.state for port in after}
    return tuple(
        name for name, port in before.items() if port.state == "ACTIVE" and states.get(name, "absent") != "ACTIVE"
    )


def _device_window(before: DeviceState, after: DeviceState, samples: Sequence[DeviceSample]) -> DeviceWindow:
    busy = [sample for sample in samples if sample.utilization_percent]
    # A source without samples says at least how hot the device is when the step ends.
    temperatures = _known([*(sample.temperature_c for sample in samples), after.temperature_c])
    powers = _known(sample.power_w for sample in samples)
    slowdown_c = slowdown_of(before)
    margins = [slowdown_c - degrees for degrees in temperatures] if slowdown_c else _known(s.margin_k for s in samples)
    margins += _known([after.margin_k])
    clocks = _known(sample.sm_mhz for sample in busy)
    utilization = _known(sample.utilization_percent for sample in samples)
    problem = next((sample.problem for sample in samples if sample.problem), after.problem)
    throttled = _risen(before.throttled_ns, after.throttled_ns)
    # An idle device is slow by itself; what held while it was idle is no reason.
    reasons = [s.throttle_reasons if s.utilization_percent else () for s in samples if s.throttle_reasons is not None]
    names = {name for held in reasons for name in held} - before.throttled_ns.keys()
    names -= _BY_HEAT if "thermal" in before.throttled_ns else set()
    return DeviceWindow(
        uuid=after.uuid,
        samples=len(samples),
        temperature_max_c=max(temperatures, default=None),
        margin_min_k=min(margins, default=None),
        utilization_percent=round(fmean(utilization), 1) if utilization else None,
        power_mean_w=round(fmean(powers), 1) if powers else None,
        power_max_w=max(powers, default=None),
        sm_mhz=median(clocks) if clocks else None,
        memory_max_bytes=max((s.memory_used_bytes for s in samples if s.memory_used_bytes is not None), default=None),
        pcie_generation=max((s.pcie_generation for s in busy if s.pcie_generation is not None), default=None),
        pcie_width=max((s.pcie_width for s in busy if s.pcie_width is not None), default=None),
        risen=_all_risen(before, after),
        risen_links={
            name: tuple(links) for name, links in risen_by_link(before.link_counters, after.link_counters).items()
        },
        fec_risen=_fec_risen(before.nvlink_fec_history, after.nvlink_fec_history),
        throttled_ns=throttled,
        throttled_share={
            **{name: round(sum(name in held for held in reasons) / len(reasons), 3) for name in sorted(names)},
            **_shares_of_ticks(before, after),
        },
        broken=tuple(name for name in after.broken if name not in before.broken),
        problem=problem if problem != before.problem else "",
        recovery_action=after.recovery_action if after.recovery_action != before.recovery_action else None,
        nvlinks_lost=max(0, (before.nvlinks_active or 0) - after.nvlinks_active) if after.nvlinks_active is not None
        else 0,
    )  # fmt: skip


def _shares_of_ticks(before: DeviceState, after: DeviceState) -> dict[str, float]:
    """Return for which share of the time each reason held, of a device that counts it in ticks."""
    ticks = (after.ticks or 0) - (before.ticks or 0)
    if before.ticks is None or ticks <= 0:
        return {}
    risen = _risen(before.throttled_ticks, after.throttled_ticks)
    return {name: round(min(count / ticks, 1.0), 3) for name, count in sorted(risen.items())}


def slowdown_of(state: DeviceState) -> float | None:
    """Return the temperature at which a device slows itself down, by its driver; None: the driver names none."""
    if state.slowdown_c is None and state.margin_k is not None and state.temperature_c is not None:
        slowdown_c = state.temperature_c + state.margin_k
        return slowdown_c if _SLOWDOWN_C[0] <= slowdown_c <= _SLOWDOWN_C[1] else None
    return state.slowdown_c


def _all_risen(before: DeviceState, after: DeviceState) -> dict[str, int]:
    """Return by how much each counter rose: where single links are known, on those that both states show."""
    by_link = risen_by_link(before.link_counters, after.link_counters)
    whole = _risen(before.counters, after.counters)
    known = before.link_counters.keys() | after.link_counters.keys()
    return {
        **{name: count for name, count in whole.items() if name not in known},
        **{name: sum(links.values()) for name, links in by_link.items()},
    }


def _fec_risen(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    risen = [max(0, last - first) for first, last in zip(before, after, strict=False)]
    while risen and not risen[-1]:
        risen.pop()
    return tuple(risen)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much counters rose. One that fell was reset meanwhile: what it shows now, it has counted since."""
    changes = {
        name: value - before[name] if value >= before[name] else value
        for name, value in after.items()
        if name in before
    }
    return {name: change for name, change in changes.items() if change}


def mapped_libraries(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the paths of libnccl and librccl that processes of this user have mapped.

    Root may look at those of others too, who can map what they like, under any name and as often.
    """
    found = set[str]()
    for number, folder in enumerate(proc.glob("[0-9]*")):
        if number >= _MOST_PROCESSES:
            break
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / "maps").open(errors="replace", newline="\n") as file:
                lines = file.read(_MOST_MAPS_CHARS).split("\n")
        except OSError:
            continue
        found |= {"/" + line.partition("/")[2] for line in lines if _LIBRARY.search(line)}
    return tuple(sorted(found))[:16]
