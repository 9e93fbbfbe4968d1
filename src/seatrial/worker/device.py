"""One device of one rank: CPU with Gloo, CUDA with NCCL, ROCm with RCCL, behind the same few functions.

ROCm builds of torch answer to ``torch.cuda``; ``torch.version.hip`` tells them apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.probe.cpu import cores_in, cpu_model
from seatrial.probe.gpu_gauges import Gauges, open_gauges

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
    id: str = ""
    """Which one it is on its host: UUID or PCI address; empty where torch tells neither, and for a CPU."""
    bus: str = ""
    """Its PCI address, empty where torch does not tell it."""

    @property
    def torch(self) -> Any:
        """The ``torch.device``."""
        import torch

        return torch.device(self.type, self.index) if self.type != "cpu" else torch.device("cpu")

    @property
    def units(self) -> int:
        """Among how many a sum is divided: multiprocessors of a GPU, threads of a CPU process."""
        import torch

        if self.type == "cuda":
            return int(torch.cuda.get_device_properties(self.index).multi_processor_count)
        return torch.get_num_threads()

    def gauges(self) -> Gauges | None:
        """What it says of itself while it works; None: it has no gauges that can be read."""
        return open_gauges(self.vendor, self.id, self.bus)

    @contextlib.contextmanager
    def near(self, sysfs: Path = Path("/sys")) -> Iterator[None]:
        """Within, on the cores of its own NUMA node, if it has one: so that pinned memory comes to lie there.

        By way of another socket a copy is slower, and where a process runs that nobody has bound is left to chance.
        """
        cores = os.sched_getaffinity(0)
        with contextlib.suppress(OSError, ValueError):
            text = (sysfs / "bus" / "pci" / "devices" / f"{self.bus}.0" / "local_cpulist").read_text()
            os.sched_setaffinity(0, cores_in(text) & cores or cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)

    def synchronize(self) -> None:
        """Return when all work queued on the device is done."""
        if self.type == "cuda":
            import torch

            torch.cuda.synchronize(self.index)


def open_device(wanted: str, local_rank: int, threads: int) -> Device:
    """Open the device of a local rank and set the number of CPU threads.

    ``wanted`` is ``cpu``, ``cuda`` or ``rocm``, as the controller decided after it had looked at driver and torch. So
    what cannot be opened here is the device's fault: RuntimeError, worded as torch words a device error.
    """
    import torch

    torch.set_num_threads(threads)
    if wanted == "cpu":
        return _open_cpu(torch)
    fault = "HIP error" if wanted == "rocm" else "CUDA error"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # torch has an assertion and an exception of its own here, besides RuntimeError
        raise RuntimeError(
            f"{fault}: the driver shows {torch.cuda.device_count()} devices and torch finds none usable: {error}"
        ) from error
    count = torch.cuda.device_count()
    # A launcher may show each process one device only: then every local rank uses index 0.
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise RuntimeError(f"{fault}: no device is left for local rank {local_rank}: torch finds {count} usable")
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    hip = getattr(torch.version, "hip", None)
    uuid, bus = str(getattr(properties, "uuid", "")), _bus(properties)
    return Device(
        type="cuda",
        vendor="amd" if hip else "nvidia",
        index=index,
        name=str(properties.name),
        backend="nccl",
        memory_bytes=int(properties.total_memory),
        libraries=f"torch {torch.__version__} {'ROCm ' + hip if hip else 'CUDA ' + str(torch.version.cuda)}",
        id=uuid if uuid.strip("0-") else bus,  # all zeros: a virtual device without one
        bus=bus,
    )


def _bus(properties: Any) -> str:
    if not hasattr(properties, "pci_domain_id"):
        return ""
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"


def _open_cpu(torch: Any) -> Device:
    capability = torch.backends.cpu.get_cpu_capability()
    return Device(
        type="cpu",
        vendor="cpu",
        index=0,
        name=cpu_model(),
        backend="gloo",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libraries=f"torch {torch.__version__} {capability}",
    )
