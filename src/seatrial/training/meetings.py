"""Where the ranks tell one another how each step went: not at every step, since each time waits for the device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seatrial.training.outcome import NonFinite

__all__ = ["MOST_STEPS", "Meetings", "Told"]

_LONGEST_S = 0.25
"""About so much time lies between two meetings: nobody who reads a loss or asks to stop notices."""
MOST_STEPS = 32
"""And at most so many steps: those of a batch of 64 images on a CPU take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What all ranks know after a meeting; the same on each."""

    loss_sums: tuple[float, ...]
    """Of each step since the last meeting, over the samples of the global batch, up to the first that is not finite."""
    nonfinite: NonFinite | None
    """The first step whose loss is not finite, and the ranks that brought it in."""
    stop: bool
    """Whether a rank was asked to stop."""


class Meetings:
    """The losses of the steps since the last meeting, and when the next one is due.

    That is a function of what was told at the last one, so all ranks meet after the same step.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, each_step: bool) -> None:
        self._group, self._device = group, device
        self._most_steps = 1 if each_step else MOST_STEPS
        self._losses: list[Tensor] = []
        self._due_steps = 1
        self._since = time.perf_counter()

    def add(self, loss_sum: Tensor) -> bool:
        """One step more, with the loss of the rank's own share, a scalar; whether a meeting is due."""
        self._losses.append(loss_sum)
        return len(self._losses) >= self._due_steps

    def meet(self, step: int, stop: bool) -> Told:
        """After ``step``. All ranks call this after the same one, each with whether it was asked to stop."""
        num_steps, size = len(self._losses), self._group.size()
        # A column a rank: to add zeros is exact, so all ranks see each other's numbers as they are. Bits of a sum would
        # depend on how many steps are told at once, which depends on the time.
        table = torch.zeros(num_steps + 2, size, dtype=torch.float64, device=self._device)
        own = table[:, self._group.rank()]
        own[:num_steps] = torch.stack(self._losses)
        own[num_steps] = float(stop)
        own[num_steps + 1] = (time.perf_counter() - self._since) / num_steps
        self._losses.clear()
        rows = _wait_for_others(dist.all_reduce(table, group=self._group, async_op=True), table)
        slowest_s = max(rows[-1])
        self._due_steps = max(1, min(self._most_steps, int(_LONGEST_S / max(slowest_s, 1e-9))))
        self._since = time.perf_counter()
        sums, nonfinite = [], None
        for number, row in enumerate(rows[:num_steps]):
            bad = tuple(rank for rank, loss in enumerate(row) if not math.isfinite(loss))
            if bad:
                nonfinite = NonFinite(step=step - num_steps + 1 + number, group_ranks=bad)
                break
            sums.append(math.fsum(row))
        return Told(loss_sums=tuple(sums), nonfinite=nonfinite, stop=any(rows[-2]))


def _wait_for_others(work: Any, table: Tensor) -> list[list[float]]:
    """The conductor knows by the name of this function that a rank whose stack ends here is waiting for the others."""
    work.wait()
    rows: list[list[float]] = table.tolist()
    return rows
