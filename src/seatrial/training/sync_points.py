"""Sync points: where the ranks exchange the losses of their steps. Not after each step, since each exchange waits for
the device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seatrial.training.outcome import NonFinite

_LONGEST_S = 0.25
"""Approximate time between two sync points: short enough for a person who reads the loss or asks to stop."""
MOST_STEPS = 32
"""Most steps between two sync points; with 64 images per batch, steps on a CPU take milliseconds."""
_LARGEST_LOSS = torch.finfo(torch.float32).max
"""The largest loss of a rank. With a larger number, which arrived damaged, the sum of an epoch would be infinite. The
smallest is 0, since no cross entropy is negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of one sync point; the same on all ranks, but for what a rank knows of itself alone."""

    loss_sums: tuple[float, ...]
    """For each step since the last sync point, the loss sum over the global batch, up to the first that is not
    finite."""
    own_loss_sums: tuple[float, ...]
    """For the same steps, the loss sum over this rank's share: no other rank can change it."""
    nonfinite: NonFinite | None
    """The first step with a loss that is not finite, and the ranks that contributed it; None: all are finite."""
    stop: bool
    """Whether a rank was asked to stop."""


class SyncPoints:
    """The losses of the steps since the last sync point, and the decision when the next one is due.

    That decision is a function of the last exchange, so all ranks sync after the same step.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, each_step: bool) -> None:
        self._group, self._device = group, device
        self._most_steps = 1 if each_step else MOST_STEPS
        self._losses: list[Tensor] = []
        self._ordinary: list[Tensor] = []
        self._due_steps = 1
        self._since = time.perf_counter()

    def add(self, loss_sum: Tensor, began_ordinary: Tensor) -> bool:
        """Add one step with the loss sum of this rank's share, a scalar, and whether the parameters were of ordinary
        size before; return whether a sync point is due."""
        self._losses.append(loss_sum)
        self._ordinary.append(began_ordinary)
        return len(self._losses) >= self._due_steps

    def sync(self, step: int, stop: bool) -> SyncResult:
        """Exchange the losses after ``step``. All ranks call this after the same step.

        ``stop``: whether this rank was asked to stop.
        """
        num_steps, size = len(self._losses), self._group.size()
        # One column per rank: adding zeros is exact, so all ranks get each other's numbers unchanged and sum them step
        # by step. The bits of a sum over several steps would depend on how many steps are exchanged at once.
        table = torch.zeros(num_steps + 2, size, dtype=torch.float64, device=self._device)
        own_rank, own_losses = self._group.rank(), torch.stack(self._losses).double()
        own = table[:, own_rank]
        own[:num_steps] = own_losses
        own[num_steps] = float(stop)
        own[num_steps + 1] = (time.perf_counter() - self._since) / num_steps
        ordinary = torch.stack(self._ordinary)
        self._losses.clear()
        self._ordinary.clear()
        rows = _wait_for_others(dist.all_reduce(table, group=self._group, async_op=True), table)
        # The sum may have been damaged on its way.
        slowest_s = max(rows[-1]) if all(map(math.isfinite, rows[-1])) else _LONGEST_S
        self._due_steps = max(1, min(self._most_steps, int(_LONGEST_S / max(slowest_s, 1e-9))))
        self._since = time.perf_counter()
        sums, nonfinite = [], None
        own_are_finite = own_losses.isfinite().tolist()
        for number, row in enumerate(rows[:num_steps]):
            bad = [rank for rank, loss in enumerate(row) if not math.isfinite(loss)]
            if bad or not own_are_finite[number] or not all(0 <= loss <= _LARGEST_LOSS for loss in row):
                # Any rank, and any link, can change the sum: this rank is among the bad ones if its own loss is, and
                # only then.
                bad = sorted({*bad, own_rank} - ({own_rank} if own_are_finite[number] else set()))
                nonfinite = NonFinite(
                    step=step - num_steps + 1 + number,
                    group_ranks=tuple(bad),
                    began_ordinary=bool(ordinary[number]),
                )
                break
            sums.append(math.fsum(row))
        return SyncResult(
            loss_sums=tuple(sums),
            own_loss_sums=tuple(own_losses[: len(sums)].tolist()),
            nonfinite=nonfinite,
            stop=any(rows[-2]),
        )


def _wait_for_others(work: Any, table: Tensor) -> list[list[float]]:
    """Wait for the sum and return its rows, shape (steps + 2, ranks).

    The conductor knows this function by its name: a rank whose stack ends here is waiting for others.
    """
    work.wait()
    rows: list[list[float]] = table.tolist()
    return rows
