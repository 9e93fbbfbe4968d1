"""The GPU state in the report: before and after the trial, what changed, and what was seen while each check ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.checks.diagnostics.history import NodeHistory, histories
from seatrial.checks.diagnostics.judge_handed import handed_files
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceState
from seatrial.evidence.schema_types import Whole
from seatrial.judge.conclude import Conclusion, evidence_of
from seatrial.report.summary import DIAGNOSTICS, is_about_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """One device. ``before`` and ``after`` leave out fields without a value; ``devices/state.py`` has them all."""

    name: str
    rank: Whole | None
    """The rank that used it; None: none did, or the ranks do not know their device."""
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None
    """None: it was lost, or there is no last snapshot."""
    changes: Mapping[str, Any]
    """Field -> [before, after] of the state, and counter -> by how much it rose."""
    temperature_max_c: float | None
    power_max_w: float | None
    memory_max_share: float | None
    """The largest share of its memory that was in use in a sample."""
    utilization_percent: Mapping[str, float]
    """Check -> mean utilization while it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node with its devices."""

    node: str
    source: str
    """Where the values come from, such as ``NVML 580.95.05``."""
    topology: Mapping[str, str]
    """Pair of device numbers -> how they are connected, in the words of ``nvidia-smi topo -m``."""
    topology_after: Mapping[str, str] | None
    """The same at the end of the trial; None: there is no last snapshot."""
    not_checked: Mapping[str, str]
    """What could not be read -> why."""
    devices: tuple[DeviceReport, ...]
    windows: tuple[Mapping[str, Any], ...]
    """One for each step: its samples, what rose, and the events of the kernel log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedReport:
    """One file that was handed over with ``--evidence``: what it says, and which nodes of this trial it is about."""

    name: str
    sha256: str
    form: str
    """Form and version; empty: none that seatrial knows."""
    unused: str
    """Why it counts for nothing; empty: it counts."""
    nodes: tuple[str, ...]
    passed: Whole
    """Tests that passed, or ranks without trouble."""
    results: tuple[Mapping[str, Any], ...]
    """Everything else that it says; ``devices/handed.py`` explains the fields."""


_MEASURED = frozenset(
    [
        "temperature_c",
        "memory_temperature_c",
        "margin_k",
        "utilization_percent",
        "sm_mhz",
        "memory_mhz",
        "power_w",
        "memory_used_bytes",
        "throttle_reasons",
        "throttled_ns",
        "throttled_ticks",
        "ticks",
        "counters",
        "pcie_generation",
        "processes",
        "unavailable",
    ]
)
"""Fields that differ between any two moments."""


def gpu_diagnostics(conclusion: Conclusion) -> tuple[NodeReport, ...]:
    """Return the nodes that reported devices; none where nobody was asked, and none whose report is damaged."""
    trial = conclusion.trial
    if not is_about_devices(conclusion):
        return ()
    facts = tuple(fact for fact in trial.facts if (fact.check, fact.generation) == (DIAGNOSTICS, 0))
    nodes, _ = histories(facts, trial.ranks, trial.host_names)
    return tuple(_node(history) for history in nodes)


def handed_over(conclusion: Conclusion) -> tuple[HandedReport, ...]:
    """Return the files that were handed over, without those that are damaged."""
    trial = conclusion.trial
    facts = tuple(fact for fact in trial.facts if (fact.check, fact.generation) == (DIAGNOSTICS, 0))
    nodes, _ = histories(facts, trial.ranks, trial.host_names)
    files, _ = handed_files(evidence_of(trial, DIAGNOSTICS), nodes)
    return tuple(
        HandedReport(
            name=entry.file.name,
            sha256=entry.file.sha256,
            form=entry.file.form,
            unused=entry.unused,
            nodes=tuple(sorted({*entry.nodes.values(), *(history.node for history, _ in entry.devices.values())})),
            passed=entry.file.passed,
            results=tuple(to_json(result) for result in entry.file.results),
        )
        for entry in files
    )


def _node(history: NodeHistory) -> NodeReport:
    return NodeReport(
        node=history.node,
        source=history.before.source,
        topology=history.before.topology,
        topology_after=history.after.topology if history.after else None,
        not_checked=history.before.not_checked,
        devices=tuple(_device(history, device) for device in history.before.devices),
        windows=tuple(to_json(window) for window in history.windows),
    )


def _device(history: NodeHistory, device: DeviceState) -> DeviceReport:
    after_all = history.after.devices if history.after else ()
    after = next((state for state in after_all if state.uuid == device.uuid), None)
    windows = list(history.windows_of(device.uuid))
    risen: dict[str, int] = {}
    for _, changes in windows:
        for name, count in changes.risen.items():
            risen[name] = risen.get(name, 0) + count
    first, last = to_json(device), to_json(after) if after else {}
    differ = {
        name: [first.get(name), last.get(name)]
        for name in sorted(first.keys() | last.keys())
        if after and name not in _MEASURED and first.get(name) != last.get(name)
    }
    return DeviceReport(
        name=history.culprit(device).name,
        rank=history.ranks.get(device.uuid),
        before=first,
        after=last if after else None,
        changes={**differ, **risen},
        temperature_max_c=_highest(changes.temperature_max_c for _, changes in windows),
        power_max_w=_highest(changes.power_max_w for _, changes in windows),
        memory_max_share=_share(_highest(changes.memory_max_bytes for _, changes in windows), device),
        utilization_percent={
            window.check: changes.utilization_percent
            for window, changes in windows
            if changes.utilization_percent is not None
        },
    )


def _share(used_bytes: float | None, device: DeviceState) -> float | None:
    if used_bytes is None or not device.memory_total_bytes:
        return None
    return round(used_bytes / device.memory_total_bytes, 4)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
