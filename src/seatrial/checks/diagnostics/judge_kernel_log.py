"""The findings of the kernel log: XIDs and SXIDs since the beginning, one finding for each device that is at fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from seatrial.checks.diagnostics.history import NAME, NodeHistory, step_words
from seatrial.devices import xid
from seatrial.devices.state import KernelEvent, NodeWindow
from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import Culprit, Finding

_FATAL_ACTIONS = ("reset", "restart machine", "mechanics", "firmware")
_FATAL_XIDS = (48, 74, 94, 171, 172)
"""Uncorrectable memory errors and the NVLink error, whose own workflow or program restart hides how grave they are."""
_SHOWN = 10
_MOST_EVENTS = 1_000
"""Lines of a node that are judged. A node reports few of each kind and device; each is compared with all others."""
_FATAL_AMD = ("uncorrectable", "reset begin", "poison")


def kernel_findings(history: NodeHistory) -> Iterator[Finding]:
    """Yield a finding for each component that the log accuses, with the lines that follow from it as evidence."""
    by_bus = defaultdict[tuple[str, bool], list[tuple[KernelEvent, NodeWindow]]](list)
    following = defaultdict[int | None, list[tuple[int, KernelEvent]]](list)
    for number, (event, window) in enumerate(_new_events(history)[:_MOST_EVENTS]):
        by_bus[event.bus, _accuses_partner(event)].append((event, window))
        following[event.follows].append((number, event))
    for (bus, is_partner), entries in by_bus.items():
        graded = [(grade, event, window) for event, window in entries if (grade := _grade(event)) is not None]
        if not graded:
            continue
        grade, event, window = min(graded, key=lambda entry: entry[0])
        codes = {event.code for event, _ in entries if event.kind == "xid"}
        # A log may have a line for each device that follows from the same line of each other one.
        followers = [
            each
            for code in codes
            for each in islice(((number, event.text) for number, event in following[code] if event.bus != bus), _SHOWN)
        ]
        lines = [event.text for event, _ in entries[:_SHOWN]] + [text for _, text in sorted(followers)[:_SHOWN]]
        yield _finding(history, bus, event, window, "fail" if grade == 0 else "warn", is_partner, tuple(lines))


def too_many_events(history: NodeHistory) -> str:
    """Return what is absent where the node reports more lines than are judged; empty where it does not."""
    count = len(_new_events(history))
    if count <= _MOST_EVENTS:
        return ""
    return f"{count - _MOST_EVENTS} of {count} lines of the kernel log of {a_node(history.node)}: they are too many"


def _new_events(history: NodeHistory) -> list[tuple[KernelEvent, NodeWindow]]:
    return [(event, window) for window in history.windows for event in window.kernel_events if not event.old]


def _accuses_partner(event: KernelEvent) -> bool:
    return event.code == 149 and event.subcode in xid.PARTNER_AT_FAULT


def _grade(event: KernelEvent) -> int | None:
    """Return 0 for an event that fails its component, 1 for a warning, None for one that accuses nobody."""
    if event.kind == "off the bus":
        return 0
    if event.kind == "sxid":
        return 0 if event.fatal else 1
    if event.kind == "amdgpu":
        return 0 if any(words in event.text.lower() for words in _FATAL_AMD) else 1
    if event.follows is not None:
        return None
    action = xid.action(event.code)
    if action == "ignore":
        return None
    if event.code in xid.NVLINK_5:
        return 1 if event.fatal is False else 0
    return 0 if action in _FATAL_ACTIONS or event.code in _FATAL_XIDS else 1


def _finding(
    history: NodeHistory,
    bus: str,
    event: KernelEvent,
    window: NodeWindow,
    severity: str,
    is_partner: bool,
    lines: tuple[str, ...],
) -> Finding:
    device = next((device for device in history.before.devices if device.bus and device.bus == bus), None)
    place = f"{bus or 'a device'} of {a_node(history.node)}"
    if event.kind == "sxid":
        culprit = Culprit(kind="device", name=f"NVSwitch {place}", nodes=(history.node,))
    elif device is not None:
        culprit = history.culprit(device)
    else:
        culprit = Culprit(kind="device", name=f"GPU {place}", nodes=(history.node,))
    label = {"xid": f"XID {event.code}", "sxid": f"SXID {event.code}", "off the bus": "that it has fallen off the bus"}
    logged = f"the kernel logged {label.get(event.kind, 'an error')} of {culprit.name} {step_words(window)}"
    advice = xid.advice(event.code) if event.kind == "xid" else "look up the line in the evidence"
    if event.kind == "off the bus":
        advice = xid.advice(79)
    if is_partner:
        partner = f"the device at the other end of NVLink {event.link} of {culprit.name}"
        culprit = Culprit(kind="device", name=partner, nodes=(history.node,))
        logged = f"the kernel logged XID 149 {step_words(window)}, whose subcode {event.subcode} accuses {partner}"
    if device is not None:
        unused = device.uuid not in history.used
    else:  # a container sees the kernel log of its whole machine, and not the devices that others use
        unused = event.kind != "sxid" and bool(bus) and any(known.bus for known in history.before.devices)
    unused = unused and not is_partner
    made = Finding(
        severity="fail" if severity == "fail" and not unused else "warn",
        check=NAME,
        what=logged + ("; no rank used it" if unused else ""),
        culprit=culprit,
        evidence=lines,
        action=advice,
    )
    if made.severity == "warn" and event.code in xid.APPLICATION and event.kind == "xid":
        return replace(made, action=f"a program can cause it; {advice}")
    return made
