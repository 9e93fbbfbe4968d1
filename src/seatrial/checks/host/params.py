"""Parameters of the host check."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The limits of the host check. One GB is 10**9 bytes."""

    min_shm_gb: float = 0.9
    """Free space in /dev/shm, in GB. NCCL's guide asks containers for 1 GB (``--shm-size=1g``), and a part of that is
    soon in use."""
    min_memory_per_rank_gb: float = 0.5
    """Host memory in GB for each rank of a node, on top of what its processes use when this check runs. CPU ranks of
    the level ``standard`` took 0.35 GB more."""
    min_open_files: int = 512
    """Open files for one process, whatever the number of ranks: libraries, data loaders, checkpoints."""
    min_open_files_per_rank: int = 16
    """Additional open files for each rank of the world: Gloo and NCCL keep sockets to their peers in every group."""
    min_memlock_gb: float = 1.0
    """Locked memory in GB on nodes with RDMA devices, which send from and receive to locked memory."""
    min_cores_per_rank: float = 1.0
    """CPU cores for each rank of a node."""
    max_clock_offset_ms: float = 100.0
    """Difference in ms between the clocks of two nodes. NTP keeps clocks within a few ms; logs and rendezvous rely on
    them."""
    own_context_gb: float = 1.0
    """Device memory in GB allowed for our context: kernels and driver tables take 0.3 to 0.8 GB on most devices."""
    max_device_used_gb: float = 1.0
    """Device memory in GB that may be in use on top of our context."""
    resolve_timeout_s: float = 2.0
    """Seconds that the resolver has to look up the node's hostname."""
    timeout_s: float = 30.0
    """Seconds for the whole check."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence for a value out of range."""
        for key, value in asdict(self).items():
            if value < 0:
                raise ValueError(f"{key} is {value:g}; it must not be negative")
        if not 0 < self.resolve_timeout_s < self.timeout_s:
            raise ValueError(
                f"resolve_timeout_s is {self.resolve_timeout_s:g}; it must be above 0 and fit into timeout_s, "
                f"{self.timeout_s:g} s"
            )
