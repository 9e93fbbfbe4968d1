"""The inventory that each rank reports."""

from __future__ import annotations

import os
import platform
from typing import Any

from seatrial.checks.inventory.params import Params
from seatrial.probe import cpu, host
from seatrial.rank.context import Context

_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def measure(context: Context, params: Params) -> None:
    """Report device, libraries, driver and host of this rank. A value is None if it cannot be read here."""
    import torch

    context.phase("read the inventory")
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
    """Return the version of NCCL or RCCL; None if this build of torch has neither."""
    import torch

    try:
        version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError, ImportError):
        return None
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
