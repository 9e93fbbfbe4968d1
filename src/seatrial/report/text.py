"""Words for people: nothing that a rank or a host sent reaches a terminal or a page raw."""

from __future__ import annotations

import math

__all__ = ["amount", "moment", "printable", "size"]

_LONGEST = 2_000


def printable(text: str) -> str:
    """One line in which every control, format and unassigned character is an escape (``\\x1b``); cut at 2,000.

    So a host name cannot colour, erase or forge a line of ours, and what is left may stand in XML 1.0.
    """
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + " ... (cut)"
    return "".join(char if char.isprintable() else _escape(char) for char in cut.replace("\t", "    "))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def amount(value: float) -> str:
    """A measured number as a person reads it: four figures that count, no exponent where none is needed."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value)}"
    return (
        f"{value:.4g}" if 1e-4 <= abs(value) < 1e4 else f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.3e}"
    )


def size(size_bytes: int) -> str:
    """A message size in powers of two: ``8 B``, ``64 MiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def moment(seconds: float) -> str:
    """A time since the epoch as ``YYYY-MM-DD HH:MM:SS``, UTC."""
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
