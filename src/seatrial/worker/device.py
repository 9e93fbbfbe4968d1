"""One device of one rank: CPU with Gloo, CUDA with NCCL, ROCm with RCCL, behind the same few functions.

ROCm builds of torch answer to ``torch.cuda``; ``torch.version.hip`` tells them apart.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from seatrial.errors import RequestError

__all__ = ["Device", "open_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that is open for work."""

    type: str
    """``cpu`` or ``cuda`` (torch's own word, for ROCm too)."""
    vendor: str
    """``cpu``, ``nvidia`` or ``amd``."""
    index: int
    name: str
    """The model, as the driver names it."""
    backend: str
    """The collective backend that belongs to it: ``gloo`` or ``nccl`` (RCCL answers to that name)."""
    memory_bytes: int
    libraries: str
    """What decides the bits of a result besides the model: torch, CUDA or ROCm, and the CPU capability."""

    @property
    def torch(self) -> Any:
        """The ``torch.device``."""
        import torch

        return torch.device(self.type, self.index) if self.type != "cpu" else torch.device("cpu")

    def synchronize(self) -> None:
        """Return when all work queued on the device is done."""
        if self.type == "cuda":
            import torch

            torch.cuda.synchronize(self.index)


def open_device(wanted: str, local_rank: int, threads: int) -> Device:
    """Open the device of a local rank and set the number of CPU threads.

    ``wanted`` is ``cpu``, ``cuda``, ``rocm`` or ``auto``. Raises RequestError when torch cannot drive
    what was asked for.
    """
    import torch

    torch.set_num_threads(threads)
    usable = torch.cuda.is_available()
    if wanted in ("cuda", "rocm") and not usable:
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        reason = "is built for the CPU only" if built is None else "finds no usable device"
        raise RequestError(
            f"--device {wanted}: torch {torch.__version__} {reason};"
            f" install a torch built for {wanted}, or use --device cpu."
        )
    if wanted == "cpu" or not usable:
        return _open_cpu(torch)
    count = torch.cuda.device_count()
    # A launcher may show each process one device only: then every local rank uses index 0.
    index = local_rank % count
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    hip = getattr(torch.version, "hip", None)
    return Device(
        type="cuda",
        vendor="amd" if hip else "nvidia",
        index=index,
        name=str(properties.name),
        backend="nccl",
        memory_bytes=int(properties.total_memory),
        libraries=f"torch {torch.__version__} {'ROCm ' + hip if hip else 'CUDA ' + str(torch.version.cuda)}",
    )


def _open_cpu(torch: Any) -> Device:
    import os

    capability = torch.backends.cpu.get_cpu_capability()
    return Device(
        type="cpu",
        vendor="cpu",
        index=0,
        name=_cpu_model(),
        backend="gloo",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libraries=f"torch {torch.__version__} {capability}",
    )


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
