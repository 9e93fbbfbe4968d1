"""What NVML counts on each NVLink of a device: errors, and what its error correction corrected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.devices.nvml_fields import FEC_HISTORY_FIELDS, LINK_COUNTER_FIELDS, read_fields
from seatrial.devices.plausible import NOT_READ, implausible, is_count

_BUDGET_S = 0.1
"""Time that one reading of the history may take. Each value may be a question to the firmware of a link, and there are
16 of them for each link; a snapshot has to be ready within seconds."""
_NATURAL = (2, 3, 6, 13)
"""Codes of a field that a generation of NVLink does not have."""

Ask = Callable[[Any, int], int]


def read_links(
    ask: Ask, links: Sequence[int], refuse: Callable[[str, int], None]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return ``DeviceState.link_counters`` of these links, and counter -> why one of its values was left out."""
    wanted = [(field, link) for field in LINK_COUNTER_FIELDS for link in links]
    code, values = read_fields(ask, wanted)
    if code:
        refuse("link_counters", code)
        return {}, {}
    counts, wrong = dict[str, list[int]](), dict[str, str]()
    for (field, link), value in zip(wanted, values, strict=True):
        name = LINK_COUNTER_FIELDS[field]
        if value.code:
            if value.code not in _NATURAL:
                refuse(name, value.code)
        elif not is_count(value.number):
            wrong[name] = implausible(value.number)
        else:
            by_link = counts.setdefault(name, [NOT_READ] * (max(links) + 1))
            by_link[link] = max(by_link[link], 0) + int(value.number)
    return {name: tuple(by_link) for name, by_link in counts.items()}, wrong


class CorrectionHistory:
    """The history of a device's forward error correction (FEC, from NVLink 5 on)."""

    def __init__(self) -> None:
        self._took_s = 0.0

    def read(self, ask: Ask, links: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Return ``DeviceState.nvlink_fec_history``; where it is empty, why."""
        if self._took_s > _BUDGET_S:
            return (), f"left out: reading it took {self._took_s:.1f} s"
        code, first = read_fields(ask, [(FEC_HISTORY_FIELDS[0], link) for link in links[:1]])
        if code or not first or first[0].code:
            return (), "not supported"
        began = time.monotonic()
        wanted = [(field, link) for field in FEC_HISTORY_FIELDS for link in links]
        code, values = read_fields(ask, wanted)
        self._took_s = time.monotonic() - began
        bins = dict.fromkeys(FEC_HISTORY_FIELDS, 0)
        for (field, _), value in zip(wanted, values, strict=False):
            if value.code or not is_count(value.number):
                return (), "a link did not say it"
            bins[field] += int(value.number)
        return tuple(bins.values()), ""


def risen_by_link(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int]]:
    """Return counter -> link -> by how much it rose, where it did, of links that both snapshots show.

    A link that was down has its old total when it comes up again, which is no change.
    """
    changes: dict[str, dict[int, int]] = {}
    for name, counts in after.items():
        for link, (first, last) in enumerate(zip(before.get(name, ()), counts, strict=False)):
            if min(first, last) >= 0 and (risen := last - first if last >= first else last):
                changes.setdefault(name, {})[link] = risen
    return changes
