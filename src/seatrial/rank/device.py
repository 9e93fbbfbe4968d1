"""The device of a rank: CPU with Gloo, CUDA with NCCL or ROCm with RCCL, behind the same few functions.

ROCm builds of torch use ``torch.cuda``; ``torch.version.hip`` shows that they are ROCm.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that is open for work."""

    type: str
    """``cpu`` or ``cuda`` (torch's word, for ROCm too)."""
    vendor: str
    """``cpu``, ``nvidia`` or ``amd``."""
    index: int
    """Index in torch's numbering; 0 for a CPU."""
    name: str
    """The model, as the driver names it."""
    backend: str
    """The collective backend for it: ``gloo`` or ``nccl`` (RCCL has that name too)."""
    memory_bytes: int
    libraries: str
    """Libraries that decide the bits of a result besides the model: torch, CUDA or ROCm, and the CPU capability."""
    id: str = ""
    """Identity on its host: UUID or PCI address; empty for a CPU, and where torch knows neither."""
    bus: str = ""
    """PCI address; empty where torch does not know it."""

    @property
    def torch(self) -> Any:
        """The ``torch.device``."""
        import torch

        return torch.device(self.type, self.index) if self.type != "cpu" else torch.device("cpu")

    @property
    def units(self) -> int:
        """Number of units that share a sum: multiprocessors of a GPU, threads of a CPU process."""
        import torch

        if self.type == "cuda":
            return int(torch.cuda.get_device_properties(self.index).multi_processor_count)
        return torch.get_num_threads()

    def gauges(self) -> Gauges | None:
        """Return the gauges of the device; None where it has none that can be read."""
        return open_gauges(self.vendor, self.id, self.bus)

    @contextlib.contextmanager
    def on_its_numa_node(self, sysfs: Path = Path("/sys")) -> Iterator[None]:
        """Within this context, run on the cores of the device's NUMA node, if it has one, so that pinned memory is
        allocated there.

        Copies over another socket are slower, and where an unbound process runs is left to chance.
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

    ``wanted`` is ``cpu``, ``cuda`` or ``rocm``, as the controller decided after reading driver and torch. So a device
    that is missing here is a fault of this host: RuntimeError, in words that ``own_errors`` reads. No device is named,
    as torch says so before it has used any.
    """
    import torch

    torch.set_num_threads(threads)
    if wanted == "cpu":
        return _open_cpu(torch)
    fault = "HIP error" if wanted == "rocm" else "CUDA error"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # besides RuntimeError torch raises AssertionError and classes that are private to it
        raise RuntimeError(
            f"{fault}: the driver shows {torch.cuda.device_count()} devices and torch finds none usable: {error}"
        ) from error
    count = torch.cuda.device_count()
    # A launcher may make only one device visible to each process: then every local rank uses index 0.
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
