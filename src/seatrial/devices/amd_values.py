"""Values in the answers of AMD's tools and driver, whichever form they have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from seatrial.devices.readers import UnreadableError

PCIE_GENERATIONS: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane -> generation (PCI Express Base Specification)."""
ABSENT = "not supported"
_UNITS: Mapping[str, int] = {
    "B": 1,
    "KB": 1 << 10,
    "MB": 1 << 20,
    "GB": 1 << 30,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_MOST_CHARS = 1 << 24
_LARGEST = 10**18


def document(text: str, tool: str) -> Any:
    """Return the JSON in what a tool printed; warnings may stand before it. Raises UnreadableError."""
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    if not starts or len(text) > _MOST_CHARS:
        raise UnreadableError(f"{tool} printed no JSON: {text.strip()[:200]!r}")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[min(starts) :])
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{tool}: cut or damaged JSON ({error})") from error
    return value


def at(value: Any, *names: str) -> Any:
    """Return the entry of nested objects; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def number(value: Any) -> float | None:
    """Return a number, from ``12``, ``"12.0"``, ``"12 W"``, ``"(1200Mhz)"`` or ``{"value": 12, "unit": "W"}``."""
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, str):
        match = re.fullmatch(r"\(?\s*(-?\d{1,18}(?:\.\d{1,9})?)\s*[A-Za-z%/]*\)?", value.strip())
        value = float(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None


def whole(value: Any) -> int | None:
    """Return a number that is not negative as an integer."""
    found = number(value)
    return int(found) if found is not None and found >= 0 else None


def size_bytes(value: Any) -> int | None:
    """Return the bytes of ``{"value": 12, "unit": "MB"}``; amd-smi means MiB by MB, as its C library does."""
    count = number(value)
    unit = value.get("unit", "B") if isinstance(value, Mapping) else "B"
    factor = _UNITS.get(unit) if isinstance(unit, str) else None
    return int(count * factor) if count is not None and count >= 0 and factor is not None else None


def text(value: Any) -> str:
    """Return a text of at most 100 characters; empty for none and for ``N/A``."""
    found = str(value).strip()[:100] if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return "" if found.lower() in ("n/a", "none", "unknown") else found


def missing(values: Mapping[str, object]) -> dict[str, str]:
    """Return ``DeviceState.unavailable`` for the values that are None."""
    return {name: ABSENT for name, value in values.items() if value is None}
