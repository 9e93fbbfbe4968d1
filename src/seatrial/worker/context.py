"""What a check's ``measure`` is given: who it is, its device, its group, and where to tell what it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from seatrial.verdict.figures import Better

if TYPE_CHECKING:
    import torch.distributed as dist

    from seatrial.worker.device import Device

__all__ = ["Context"]


class Context(Protocol):
    """The worker's side of a step. ``rank`` is the trial rank; ``group_rank`` the place in today's group."""

    rank: int
    local_rank: int
    local_world_size: int
    """Ranks of this generation on this node, ours included: what they share is to be divided by it."""
    node_rank: int
    node: str
    address: str
    """Address of this node that the others can reach."""
    group_rank: int
    world_size: int
    """Size of the group of this generation."""
    ranks: tuple[int, ...]
    """Trial rank of each group rank."""
    backend: str
    device: Device
    group: dist.ProcessGroup | None
    """The world group, once ``bootstrap`` has formed it."""
    store: dist.TCPStore | None
    stage: str
    timeout_s: float
    """Seconds until the conductor's deadline for this step."""
    clock: tuple[float, float] | None
    """(offset_ms, accuracy_ms): this node's clock minus the conductor's, and by how much that may be wrong."""
    given: dict[str, Any]
    """What earlier steps shared with all ranks."""

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        better: Better | None = None,
        *,
        variant: str = "",
        size_bytes: int | None = None,
        step: int | None = None,
        peer: int | None = None,
    ) -> None:
        """Tell one measured number; check, rank, node, device, generation and stage are filled in."""

    def fact(self, name: str, value: Any) -> None:
        """Tell something seen that is no number; ``value`` is JSON."""

    def phase(self, label: str) -> None:
        """Say what comes next, *before* it begins: ``all_reduce 8 B``, ``step 12 backward``.

        Every rank passes the same phases in the same order, so the rank with the fewest is the one that the
        others wait for. About 10 microseconds.
        """

    def share(self, name: str, value: Any) -> None:
        """Give a JSON value to all ranks in the steps that follow (``given``)."""
