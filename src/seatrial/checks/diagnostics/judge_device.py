"""The findings of one device: its states, the counters that rose, its temperature, its clock and its links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.checks.diagnostics.history import NAME, NodeHistory, step_words
from seatrial.checks.diagnostics.params import Params
from seatrial.checks.diagnostics.rules import (
    CRC_ERRORS_PER_SECOND,
    FAIL_ACTIONS,
    FAIL_COUNTERS,
    FAIL_STATES,
    PROBLEM_ACTIONS,
    REPLAYS_PER_MINUTE,
    THROTTLES,
    WARN_COUNTERS,
)
from seatrial.devices.node_state import slowdown_of
from seatrial.devices.readers import TWIN
from seatrial.devices.state import BROKEN, COUNTERS, LOST, THROTTLE, DeviceState, DeviceWindow, NodeWindow
from seatrial.evidence.findings import Finding, Limit
from seatrial.util.text import as_name

_LEAST_WINDOW_S = 2.0
"""A shorter step has no shares of its time: one sample would decide."""
_ACTIVE = "active NVLinks"
_CHECK_LINKS = "check the NVLinks and what they lead to"


@dataclass(frozen=True, slots=True)
class _Case:
    """One device of one node."""

    history: NodeHistory
    device: DeviceState
    params: Params

    def finding(
        self,
        severity: Literal["fail", "warn"],
        what: str,
        action: str = "",
        *,
        measured: str = "",
        limit: Limit | None = None,
    ) -> Finding:
        """Return a finding about the device; ``what`` follows its name."""
        culprit = self.history.culprit(self.device)
        return Finding(
            severity=severity,
            check=NAME,
            what=f"{culprit.name} {what}",
            culprit=culprit,
            action=action,
            measured=measured,
            limit=limit,
        )

    def windows(self) -> Sequence[tuple[NodeWindow, DeviceWindow]]:
        """Return each step with what the device did in it."""
        return self.history.windows_of(self.device.uuid)


def device_findings(history: NodeHistory, device: DeviceState, params: Params) -> Iterator[Finding]:
    """Yield the findings of a device. If the trial did not use it, none is graver than a warning."""
    case = _Case(history, device, params)
    lost = tuple(_lost(case))
    for finding in lost or _others(case):
        if device.uuid in history.used:
            yield finding
        else:
            yield replace(finding, severity="warn", what=f"{finding.what}; no rank used it")


def _others(case: _Case) -> Iterator[Finding]:
    yield from _silent(case)
    yield from _states(case)
    yield from _counters(case)
    yield from _links(case)
    yield from _temperature(case)
    yield from _throttled(case)
    yield from _bus(case)
    if case.device.compute_mode == "prohibited":
        yield case.finding("warn", "may be used by no program (compute mode prohibited)", "set its compute mode")
    if case.device.mig:
        yield replace(case.finding("warn", "is divided into slices (MIG): the trial tests a slice"), severity="info")
    if case.device.processes:
        count = len(case.device.processes)
        users = f"process {case.device.processes[0]}" if count == 1 else f"{count} processes"
        what = f"was in use by {users} before the trial"
        if (case.device.compute_mode or "").startswith("exclusive"):
            what += f", and its compute mode leaves it to one program ({case.device.compute_mode})"
        yield case.finding("warn", what, "give the trial the whole device")


def is_unread(history: NodeHistory, device: DeviceState) -> bool:
    """Return whether nobody knows what a device counted, although it was not lost."""
    return not list(_lost(_Case(history, device, Params()))) and (
        "device" in device.unavailable or bool(_no_longer_said(history, device))
    )


def _no_longer_said(history: NodeHistory, device: DeviceState) -> dict[str, str]:
    """Return the counters that a device showed before the trial and not after it, and its active NVLinks -> why."""
    last = (
        next((state for state in history.after.devices if state.uuid == device.uuid), None) if history.after else None
    )
    if last is None:
        return {}
    why = last.unavailable.get("counters", "no reason given")
    why_links = last.unavailable.get("nvlinks", why)
    links = {_ACTIVE: why_links} if device.nvlinks_active is not None and last.nvlinks_active is None else {}
    return links | {
        name: last.unavailable.get(name, why_links if name.startswith("nvlink_") else why)
        for name in device.counters
        if name not in last.counters
    }


def _silent(case: _Case) -> Iterator[Finding]:
    """Yield a warning for a device that does not answer its driver, or no longer: it may have counted anything."""
    if why := case.device.unavailable.get("device"):
        what = f"did not answer its driver ({why})"
        yield case.finding("warn", what, "look at the kernel log; reset the GPU")
    if missing := _no_longer_said(case.history, case.device):
        names = [COUNTERS.get(name) or (name if name == _ACTIVE else as_name(name)) for name in missing]
        more = f" and {len(names) - 2} other counters" if len(names) > 2 else ""
        what = f"no longer says its {', '.join(names[:2])}{more} ({next(iter(missing.values()))})"
        yield case.finding("warn", what, "look at the kernel log; reset the GPU")
    if case.device.unavailable.get("uuid") == TWIN:
        yield case.finding("warn", "has the UUID of another device", "replace the GPU, or its firmware")


def _lost(case: _Case) -> Iterator[Finding]:
    problem, when = case.device.problem, "before the trial"
    for window, changes in case.windows():
        if changes.problem and not problem:
            problem, when = changes.problem, step_words(window)
    after = case.history.after
    if after is not None and not problem and case.device.uuid not in {device.uuid for device in after.devices}:
        problem, when = LOST, "by the end of the trial"
    if problem == LOST:
        action = "restart the machine; then check power, cooling and seat of the GPU"
        yield case.finding("fail", f"was lost {when}", action)
    elif problem:
        yield case.finding("fail", f"stopped working {when}: {problem}", PROBLEM_ACTIONS.get(problem, "reset the GPU"))


def _states(case: _Case) -> Iterator[Finding]:
    states = [(name, "before the trial") for name in case.device.broken]
    action, when = case.device.recovery_action, "before the trial"
    for window, changes in case.windows():
        states += [(name, step_words(window)) for name in changes.broken]
        if changes.recovery_action is not None:
            action, when = changes.recovery_action, step_words(window)
    for name, since in dict(reversed(states)).items():
        words = f"is broken: {BROKEN.get(name, name)} ({since})"
        if name in FAIL_STATES:
            yield case.finding("fail", words, FAIL_STATES[name])
        else:
            yield case.finding("warn", words.replace("is broken", "is not as it should be"))
    if action is not None and action in FAIL_ACTIONS and not states:
        yield case.finding("fail", f"needs a recovery, by its driver: {action} ({when})", FAIL_ACTIONS[action])
    elif action not in (None, "none") and not states:
        yield case.finding("warn", f"needs a recovery, by its driver: {action} ({when})")
    fabric = case.device.fabric_state or ""
    if fabric.startswith("failed"):
        yield case.finding(
            "fail", f"could not join its NVLink fabric: {fabric}", "look at the log of the fabric manager"
        )
    elif fabric in ("in progress", "not started"):
        yield case.finding("warn", f"has not joined its NVLink fabric ({fabric})", "start the fabric manager")


def _counters(case: _Case) -> Iterator[Finding]:
    for name, words in COUNTERS.items():
        risen = [(changes.risen[name], window) for window, changes in case.windows() if changes.risen.get(name)]
        if not risen:
            continue
        total = sum(count for count, _ in risen)
        what = f"counted {total} {words} {step_words(risen[0][1])}{_links_of(case, name)}{_memory_of(case, name)}"
        if name in FAIL_COUNTERS:
            limit = Limit(value=0, unit="1", origin="exact")
            yield case.finding("fail", what, FAIL_COUNTERS[name], measured=str(total), limit=limit)
        elif name in WARN_COUNTERS:
            yield case.finding("warn", what)
        elif name == "nvlink_crc_errors":
            yield _crc_errors(case, risen)
        elif name == "pcie_replays":
            yield from _replays(case, risen)


def _memory_of(case: _Case, counter: str) -> str:
    """Return in which memory a counter of ECC errors rose: `` (DRAM 2, SRAM 1)``. SRAM cannot be remapped."""
    counts = {
        place: sum(changes.risen.get(f"{counter}_{place.lower()}", 0) for _, changes in case.windows())
        for place in ("DRAM", "SRAM")
    }
    known = [f"{place} {count}" for place, count in counts.items() if count]
    return f" ({', '.join(known)})" if known else ""


def _links_of(case: _Case, counter: str) -> str:
    """Return the NVLinks on which a counter rose: `` (NVLinks 3, 7)``."""
    links = sorted({link for _, changes in case.windows() for link in changes.risen_links.get(counter, ())})
    if not links:
        return ""
    more = f" and {len(links) - 4} more" if len(links) > 4 else ""
    return f" (NVLink{'s' * (len(links) > 1)} {', '.join(map(str, links[:4]))}{more})"


def _crc_errors(case: _Case, risen: list[tuple[int, NodeWindow]]) -> Finding:
    """Return a failure for a rate at which they matter, else a warning: the link repairs single ones itself."""
    # One sample of a step of milliseconds would decide.
    rates = [(count / max(window.seconds, 1.0), count, window) for count, window in risen]
    rate, count, window = max(rates, key=lambda entry: entry[0])
    limit = Limit(value=CRC_ERRORS_PER_SECOND, unit="1/s", origin="DCGM's health watch")
    what = f"counted {count} {COUNTERS['nvlink_crc_errors']} {step_words(window)}{_links_of(case, 'nvlink_crc_errors')}"
    if rate >= CRC_ERRORS_PER_SECOND:
        return case.finding("fail", what, _CHECK_LINKS, measured=f"{rate:.0f} 1/s", limit=limit)
    return case.finding("warn", what, _CHECK_LINKS, measured=f"{rate:.1f} 1/s", limit=limit)


def _replays(case: _Case, risen: list[tuple[int, NodeWindow]]) -> Iterator[Finding]:
    for count, window in risen:
        per_minute = count * 60 / max(window.seconds, 60)
        if per_minute > REPLAYS_PER_MINUTE:
            limit = Limit(value=REPLAYS_PER_MINUTE, unit="1/min", origin="DCGM's health watch")
            what = f"counted {count} PCIe replays {step_words(window)}, {window.seconds:.0f} s"
            yield case.finding("warn", what, "check the seat of the GPU and its riser", limit=limit)
            return


def _links(case: _Case) -> Iterator[Finding]:
    lost, when = 0, "by the end of the trial"
    # A snapshot between them may lack the number.
    for last in case.history.after.devices if case.history.after else ():
        if last.uuid == case.device.uuid and last.nvlinks_active is not None:
            lost = (case.device.nvlinks_active or 0) - last.nvlinks_active
    for window, changes in case.windows():
        if changes.nvlinks_lost:
            lost, when = changes.nvlinks_lost, step_words(window)
            break
    if lost > 0:
        yield case.finding("fail", f"lost {lost} NVLink{'s' if lost > 1 else ''} {when}", _CHECK_LINKS)


def _temperature(case: _Case) -> Iterator[Finding]:
    params, slowdown_c = case.params, slowdown_of(case.device)
    hottest = [(changes.temperature_max_c, window) for window, changes in case.windows() if changes.temperature_max_c]
    temperature_c, window = max(hottest, key=lambda entry: entry[0] or 0.0, default=(None, None))
    if temperature_c is None or window is None:
        return
    reached = f"reached {temperature_c:.0f} degrees Celsius {step_words(window)}"
    if slowdown_c is not None:
        if temperature_c >= slowdown_c - params.warn_below_slowdown_k:
            origin = f"{params.warn_below_slowdown_k:g} K below its own slowdown at {slowdown_c:.0f}"
            limit = Limit(value=slowdown_c - params.warn_below_slowdown_k, unit="degrees Celsius", origin=origin)
            yield case.finding("warn", reached, "check the cooling", limit=limit)
    elif temperature_c > params.max_temperature_c:
        limit = Limit(value=params.max_temperature_c, unit="degrees Celsius", origin="its driver names no own limit")
        yield case.finding("warn", reached, "check the cooling", limit=limit)


def _throttled(case: _Case) -> Iterator[Finding]:
    for name in THROTTLES:
        longest = max(
            ((held_s(window, changes, name), window) for window, changes in case.windows()),
            key=lambda entry: entry[0],
            default=None,
        )
        if longest is None:
            continue
        seconds, window = longest
        if window.seconds >= _LEAST_WINDOW_S and seconds >= case.params.min_throttled_share * window.seconds:
            held = f"for {seconds:.1f} of {window.seconds:.1f} s {step_words(window)}"
            yield case.finding("warn", f"was {THROTTLE[name]} {held}", "check cooling and power supply")


def held_s(window: NodeWindow, changes: DeviceWindow, name: str) -> float:
    """Return for how many seconds of a step a reason for a lower clock held: counted, else by the samples."""
    if name in changes.throttled_ns:
        return min(changes.throttled_ns[name] / 1e9, window.seconds)
    return changes.throttled_share.get(name, 0.0) * window.seconds


def _bus(case: _Case) -> Iterator[Finding]:
    """Yield a warning for a bus that stayed below what device and slot support, under load: idle ones save power."""
    busy = [(changes, window) for window, changes in case.windows() if changes.pcie_width or changes.pcie_generation]
    width = max((changes.pcie_width or 0 for changes, _ in busy), default=0)
    generation = max((changes.pcie_generation or 0 for changes, _ in busy), default=0)
    action = "check the seat of the GPU, its riser and the settings of the slot"
    if width and case.device.pcie_width_max and width < case.device.pcie_width_max:
        what = f"used {width} of {case.device.pcie_width_max} PCIe lanes under load"
        yield case.finding("warn", what, action)
    if generation and case.device.pcie_generation_max and generation < case.device.pcie_generation_max:
        what = f"used PCIe generation {generation} of {case.device.pcie_generation_max} under load"
        yield case.finding("warn", what, action)
