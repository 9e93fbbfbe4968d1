"""Parameters of the storage check."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Folder, sizes and limits. The limits apply to a node: to all its ranks at once."""

    folder: str | None = None
    """The absolute path of the folder for checkpoints; None: the rank's working folder, or else the temporary one."""
    shared: str = "any"
    """``yes``: all ranks must see one folder; ``no``: no two nodes may; ``any``: the report only says which it is."""
    size_bytes: int = 268_435_456
    """Bytes of the file that each rank writes."""
    appends: int = 100
    """The number of appends of 4 KiB, each with its fsync."""
    min_write_gbps: float | None = None
    """The user's limit in GB/s; None: the fleet decides."""
    min_read_gbps: float | None = None
    """The user's limit in GB/s; None: the fleet decides."""
    max_fsync_ms: float | None = None
    """The user's limit in ms for the 99th percentile of the appends; None: the fleet decides, by the median."""
    timeout_s: float = 120.0
    """Seconds for each stage."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence for a value out of range."""
        if self.folder is not None and (not os.path.isabs(self.folder) or "\0" in self.folder):
            raise ValueError(f"folder is {self.folder!r}; it must be an absolute path, the same on every node")
        if self.shared not in ("yes", "no", "any"):
            raise ValueError(f"shared is {self.shared!r}; it must be one of yes, no, any")
        if self.shared != "any" and self.folder is None:
            raise ValueError(f"shared is {self.shared!r}, but no folder is given; name the folder with storage.folder")
        if self.size_bytes < 2**20 or self.size_bytes % 4096:
            raise ValueError(f"size_bytes is {self.size_bytes}; it must be a multiple of 4096 and at least {2**20}")
        if self.appends < 1:
            raise ValueError(f"appends is {self.appends}; it must be at least 1")
        for key in ("min_write_gbps", "min_read_gbps", "max_fsync_ms"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value}; a limit must be above 0")
