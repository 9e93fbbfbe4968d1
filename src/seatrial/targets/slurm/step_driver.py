"""Driver of a job step that srun starts in the current allocation."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.targets.host_of_node import HostOfNode
from seatrial.targets.launcher_process import Launcher
from seatrial.targets.slurm.node_list import find_step, hosts_of_step


class StepDriver(Launcher):
    """``Driver`` of one srun."""

    def __init__(self, allocation: str, name: str) -> None:
        """``allocation``: Slurm's ID of the job; ``name``: the name of the step."""
        super().__init__()
        self._allocation, self._name = allocation, name

    def hosts(self) -> Sequence[HostOfNode]:
        """Return the host of each node of the step. Raises SeatrialError as ``find_step`` does."""
        return hosts_of_step(find_step(self._allocation, self._name))
