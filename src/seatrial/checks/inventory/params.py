"""Parameters of the inventory check."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.checks.inventory.properties import PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The properties that the user requests. Those left at None are only compared among the nodes."""

    devices_per_node: int | None = None
    """The number of devices of each node; None: as many as most nodes have."""
    device: str | None = None
    """The device model, as the driver names it: ``NVIDIA H200``."""
    memory_gib: float | None = None
    """Memory of one device in GiB, within 1 %; in a CPU trial, memory of the host."""
    torch: str | None = None
    """The version of torch: ``2.7.0+cu128``."""
    toolkit: str | None = None
    """The toolkit that torch was built for: ``CUDA 12.8`` or ``ROCm 6.4``."""
    nccl: str | None = None
    """The version of NCCL or RCCL."""
    driver: str | None = None
    """The version of the device driver."""
    kernel: str | None = None
    """The release of the Linux kernel."""
    python: str | None = None
    """The version of Python."""
    cpu: str | None = None
    """The CPU model."""
    cores: int | None = None
    """The number of CPU cores that one process may use."""
    allow_mixed: tuple[str, ...] = ()
    """Properties that may differ between nodes: ``["kernel", "driver"]``."""
    timeout_s: float = 30.0
    """Seconds for the whole check."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence for a value out of range."""
        known = ("devices", *(about.name for about in PROPERTIES))
        unknown = [name for name in self.allow_mixed if name not in known]
        if unknown:
            raise ValueError(f"allow_mixed is {list(self.allow_mixed)}; it takes {', '.join(known)}")
        for key in ("devices_per_node", "memory_gib", "cores"):
            value = getattr(self, key)
            if value is not None and value < (0 if key == "devices_per_node" else 1):
                raise ValueError(f"{key} is {value:g}; it must be positive")
