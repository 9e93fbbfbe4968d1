"""What is there: devices, drivers, libraries. All nodes are to be alike, and as the user asks."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seatrial.checks._inventory_judge import MEMORY_TOLERANCE, PROPERTIES, judge
from seatrial.checks.base import Check, Held
from seatrial.probe import cpu, host

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What must be there. A property that is left at None is compared among the nodes only."""

    devices_per_node: int | None = None
    """None: as many as on most nodes."""
    device: str | None = None
    """The model, as the driver names it: ``NVIDIA H200``."""
    memory_gib: float | None = None
    """Of one device; of the host in a CPU trial. Within 1 %."""
    torch: str | None = None
    toolkit: str | None = None
    """``CUDA 12.8`` or ``ROCm 6.4``: what torch was built for."""
    nccl: str | None = None
    driver: str | None = None
    kernel: str | None = None
    python: str | None = None
    cpu: str | None = None
    cores: int | None = None
    """That one process may use."""
    allow_mixed: tuple[str, ...] = ()
    """Properties that may differ between nodes: ``["kernel", "driver"]``."""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        known = ("devices", *(each.name for each in PROPERTIES))
        wrong = [name for name in self.allow_mixed if name not in known]
        if wrong:
            raise ValueError(f"allow_mixed is {list(self.allow_mixed)}; it takes {', '.join(known)}")
        for key in ("devices_per_node", "memory_gib", "cores"):
            value = getattr(self, key)
            if value is not None and value < (0 if key == "devices_per_node" else 1):
                raise ValueError(f"{key} is {value:g}; it must be positive")


def measure(context: Context, params: Params) -> None:
    """Tell what this rank runs on. None stands for what cannot be told here."""
    import torch

    context.phase("look around")
    device = context.device
    hip = getattr(torch.version, "hip", None)
    toolkit = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else None
    context.fact(
        "inventory",
        {
            "device": device.name,
            "device_id": device.id,
            "index": device.index,
            "memory_bytes": device.memory_bytes,
            "visible": torch.cuda.device_count() if device.type != "cpu" else 0,
            "visibility": ";".join(f"{name}={os.environ[name]}" for name in _VISIBILITY if name in os.environ),
            "driver": host.driver_version(device.vendor),
            "toolkit": toolkit,
            "nccl": _nccl_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cpu": cpu.cpu_model(),
            "cores": cpu.usable_cores(),
            "boot_id": host.boot_id(),
            "machine": host.machine_identity(),
        },
    )


def _nccl_version() -> str | None:
    """Of NCCL or RCCL; a build of torch without them has no such function, or one that fails."""
    import torch

    try:
        found: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError, ImportError):
        return None
    return ".".join(str(part) for part in found) if isinstance(found, tuple) else str(found)


def limits(params: Params) -> tuple[Held, ...]:
    """What must be, and what must be alike."""
    rows = [Held(what="device of a rank", limit="no other rank's", origin="one process a device")]
    count, origin = "as many as on most nodes", "fleet, majority of the nodes, else the node that shows most"
    if params.devices_per_node is not None:
        count, origin = f"exactly {params.devices_per_node}", "user inventory.devices_per_node"
    elif "devices" in params.allow_mixed:
        count, origin = "none: may differ", "user inventory.allow_mixed"
    rows.append(Held(what="devices of a node", limit=count, origin=origin))
    for each in PROPERTIES:
        wanted = each.wanted(params)
        if wanted is not None:
            rows.append(Held(what=each.name, limit=each.shown(wanted), origin=f"user inventory.{each.key}"))
        elif each.name in params.allow_mixed:
            rows.append(Held(what=each.name, limit="none: may differ", origin="user inventory.allow_mixed"))
        else:
            tolerance = f", within {MEMORY_TOLERANCE:.0%}" if each.name == "memory" else ""
            only = "" if each.severity == "fail" else "; only warns"
            rows.append(Held(what=each.name, limit=f"alike{tolerance}{only}", origin="fleet, majority of the nodes"))
    return tuple(rows)


CHECK = Check(name="inventory", scope="alone", params=Params, measure=measure, judge=judge, limits=limits)
