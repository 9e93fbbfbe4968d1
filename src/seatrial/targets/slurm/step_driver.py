"""Driver of a job step that srun starts in the current allocation."""

from __future__ import annotations

import os
from collections.abc import Sequence

from seatrial.targets.launcher_process import Launcher
from seatrial.targets.slurm.node_list import hosts_of


class StepDriver(Launcher):
    """``Driver`` of one srun."""

    def hosts(self) -> Sequence[str]:
        """Return the address of each node of the allocation, of which the step may use a part."""
        node_list = os.environ.get("SLURM_JOB_NODELIST", "")
        return hosts_of(node_list) if node_list else ()
