"""The form of each fact of the host check: one that has another form is damage. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.checks.shared.facts import has_fields

_NOTHING = type(None)
_NUMBER = (int, float)
_BYTES = (int, _NOTHING)
_TEXT = (str, _NOTHING)
_MOST_CHARS = 8_192
_MOST_CORES = 65_536
"""Cores of a machine, by number and in sum: each range is counted out, also one that repeats another one."""
_MOST_CHOICES = 16
"""Variables that choose network interfaces: there are few."""


def _is_process(value: Any) -> bool:
    return has_fields(value, machine=_TEXT, network=_TEXT, affinity=_TEXT, device_used_known=bool) and (
        value["affinity"] is None or _is_affinity(value["affinity"])
    )


def _is_affinity(text: str) -> bool:
    if len(text) > _MOST_CHARS or re.fullmatch(r"(\d{1,6}(-\d{1,6})?(,(?=\d)|$))+", text) is None:
        return False
    ranges = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in text.split(","))]
    return (
        max(map(max, ranges)) < _MOST_CORES and sum(max(0, last - first + 1) for first, last in ranges) <= _MOST_CORES
    )


def _is_host(value: Any) -> bool:
    return (
        isinstance(value, dict)
        # Runs that were recorded before this field was there are judged as they were.
        and has_fields(
            {"has_loopback": None, **value},
            environment=str,
            shm=(dict, _NOTHING),
            memory=(dict, _NOTHING),
            cgroup=(dict, _NOTHING),
            memlock_bytes=_BYTES,
            locks_any=bool,
            rdma=list,
            name=dict,
            clock=(list, _NOTHING),
            leftovers=list,
            has_loopback=(bool, _NOTHING),
            interface=_TEXT,
            mtu=(int, _NOTHING),
            chosen=dict,
        )
        and (value["shm"] is None or has_fields(value["shm"], size_bytes=int, free_bytes=int))
        and (value["cgroup"] is None or _is_cgroup(value["cgroup"]))
        and has_fields(value["name"], name=str, addresses=(list, _NOTHING), own=_TEXT)
        and (value["clock"] is None or _is_clock(value["clock"]))
        and len(value["chosen"]) <= _MOST_CHOICES
        and all(_is_choice(choice) for choice in value["chosen"].values())
    )


def _is_cgroup(value: Any) -> bool:
    return has_fields(
        value, memory_limit_bytes=_BYTES, memory_left_bytes=_BYTES, quota_cores=(*_NUMBER, _NOTHING), path=str
    )


def _is_clock(value: list[Any]) -> bool:
    return len(value) == 2 and all(isinstance(number, _NUMBER) for number in value)


def _is_choice(value: Any) -> bool:
    return has_fields(value, value=str, taken=list, unknown=list, has_own=bool, leaves_host=bool)


FORMS: Mapping[str, Callable[[Any], bool]] = {"process": _is_process, "host": _is_host}
