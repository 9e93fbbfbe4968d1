"""Devices that are set up otherwise than most of their model in the trial, and power limits that somebody lowered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from seatrial.checks.diagnostics.history import NAME, NodeHistory
from seatrial.devices.state import DeviceState
from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.evidence.statistics import minority

_FEW_DEVICES = 3
"""The least number of devices of a model whose usual setting is known: of two, neither is usual."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """A field of ``DeviceState`` that is alike on all devices of a model."""

    field: str
    label: str
    """Before the value in a sentence."""
    unit: str
    severity: Literal["warn", "info"]
    action: str


_SETTINGS = (
    _Setting("power_limit_w", "a power limit of ", " W", "warn", "set the same limit with nvidia-smi -pl"),
    _Setting("sm_max_mhz", "a highest clock of ", " MHz", "warn", "look for locked clocks and another VBIOS"),
    _Setting("ecc_enabled", "ECC ", "", "warn", "set the same mode with nvidia-smi -e, and reset the GPU"),
    _Setting("mig", "MIG ", "", "warn", "set the same mode with nvidia-smi -mig"),
    _Setting("pcie_width_max", "a widest PCIe link of ", "", "warn", "check the slot and its riser"),
    _Setting("pcie_generation_max", "a highest PCIe generation of ", "", "warn", "check the slot and the BIOS"),
    # Batches of one model differ in these, and are healthy.
    _Setting("vbios", "the VBIOS ", "", "info", "install the same firmware"),
    _Setting("persistence", "persistence mode ", "", "info", "set the same mode with nvidia-smi -pm"),
)

_Entry = tuple[NodeHistory, DeviceState]


def unlike_most(nodes: tuple[NodeHistory, ...], places: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a finding for each setting in which some devices differ from most others of their model.

    ``places``: as of ``Evidence``.
    """
    models, capped = defaultdict[str, list[_Entry]](list), defaultdict[tuple[float, float], list[_Entry]](list)
    for history in nodes:
        for device in history.before.devices:
            if device.uuid in history.used and not device.problem and device.model:
                models[device.model].append((history, device))
    for entries in models.values():
        for setting in _SETTINGS:
            yield from _unlike(setting, entries, places)
        for history, device in entries:
            limit, default = device.power_limit_w, device.power_default_limit_w
            if limit is not None and default is not None and limit < default:
                capped[limit, default].append((history, device))
    for (limit, default), entries in capped.items():
        what = f"power limit below its default ({limit:g} of {default:g} W): {_names(entries)}"
        yield Finding(severity="info", check=NAME, what=what, culprit=NOBODY)


def _unlike(setting: _Setting, entries: list[_Entry], places: Mapping[int, str]) -> Iterator[Finding]:
    values = {
        number: value
        for number, (_, device) in enumerate(entries)
        if (value := getattr(device, setting.field)) is not None and value != ""
    }
    if len(values) < _FEW_DEVICES:
        return
    vote = minority(values, {number: history.host(places) for number, (history, _) in enumerate(entries)})
    others = defaultdict[Hashable, list[_Entry]](list)
    for number in vote.odd:
        others[values[number]].append(entries[number])
    for value, odd in others.items():
        culprits = [history.culprit(device) for history, device in odd]
        one = culprits[0] if len(culprits) == 1 else None
        have = f"{one.name} has" if one else f"{_names(odd)} have"
        own, usual = (f"{_text(one_value)}{setting.unit}" for one_value in (value, vote.majority))
        yield Finding(
            severity=setting.severity,
            check=NAME,
            what=f"{have} {setting.label}{own}, most others {usual}",
            culprit=one
            or Culprit(
                kind="device",
                name=_names(odd),
                ranks=tuple(rank for culprit in culprits for rank in culprit.ranks),
                nodes=tuple(dict.fromkeys(node for culprit in culprits for node in culprit.nodes)),
            ),
            action=setting.action,
        )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _names(entries: list[_Entry]) -> str:
    names = [f"GPU {device.index} of {a_node(history.node)}" for history, device in entries]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
