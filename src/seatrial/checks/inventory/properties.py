"""The properties in which all nodes of a trial should be alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MEMORY_TOLERANCE = 0.01
"""The share by which the memory of two devices of one model may differ. Firmware keeps different amounts for itself
(ECC, MIG); a lost memory bank makes a far larger difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One property of a rank."""

    name: str
    """The name in ``allow_mixed``, and the key of the fact (for memory, ``memory_bytes``)."""
    label: str
    """The name in a sentence."""
    severity: Literal["fail", "warn"]
    """The severity of a difference between nodes."""
    remedy: str
    """What to do about a difference, one clause."""

    @property
    def key(self) -> str:
        """The parameter that requests a value."""
        return "memory_gib" if self.name == "memory" else self.name

    def value(self, facts: Mapping[str, Any]) -> Hashable:
        """Return the value that a rank reported, memory in bytes; None if the rank did not know it."""
        if self.name == "memory":
            memory_bytes = facts.get("memory_bytes")
            return memory_bytes if isinstance(memory_bytes, int) and memory_bytes > 0 else None
        value = facts.get(self.name)
        return value if isinstance(value, (str, int)) else None

    def fits(self, value: Any, requested: Any) -> bool:
        """Return True if a reported value is the one that the user requests."""
        if self.name == "memory":
            return isinstance(value, (int, float)) and abs(value / 2**30 - requested) <= MEMORY_TOLERANCE * requested
        return bool(value == requested)

    def text(self, value: Any) -> str:
        """Return a requested or a reported value for a reader."""
        if self.name != "memory":
            return str(value)
        # A request is in GiB, a report in bytes.
        return f"{value / 2**30 if value >= 2**20 else value:.1f} GiB"


_INSTALL = "run the same image or the same installation on all nodes"
PROPERTIES = (
    Property(name="device", label="device model", severity="fail", remedy="request nodes of one kind"),
    Property(
        name="memory", label="memory", severity="fail", remedy="check for a disabled bank, a lost module, and MIG"
    ),
    Property(name="torch", label="torch", severity="fail", remedy=_INSTALL),
    Property(name="toolkit", label="CUDA or ROCm", severity="fail", remedy=_INSTALL),
    Property(name="nccl", label="NCCL", severity="fail", remedy=_INSTALL),
    Property(name="driver", label="driver", severity="warn", remedy="install the same driver on all nodes"),
    Property(name="kernel", label="kernel", severity="warn", remedy="install the same kernel on all nodes"),
    Property(name="python", label="Python", severity="warn", remedy=_INSTALL),
    Property(name="cpu", label="CPU model", severity="warn", remedy="request nodes of one kind"),
    Property(
        name="cores", label="cores of a process", severity="warn", remedy="give every process the same number of cores"
    ),
)
