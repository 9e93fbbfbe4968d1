"""The context of a rank: what a check's ``measure`` can read, and the methods by which it reports measurements.

The worker makes one ``Context`` when the rank starts and keeps it for the rank's life; ``begin`` sets the fields of the
step that the conductor asks for. Importing this file loads no torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.evidence.measurement import Better, Fact, Measurement
from seatrial.protocol.commands import RankStep
from seatrial.protocol.events import Event, FactsEvent, MeasurementsEvent
from seatrial.protocol.phase_page import PhaseWriter
from seatrial.rank import faults
from seatrial.rank.device import Device

if TYPE_CHECKING:
    import torch.distributed as dist

PHASES_PER_STEP = 10**9
"""Phase numbers start at this multiple of the step, so they are comparable on ranks that have run an extra step."""
_FLUSH_AFTER = 40
"""Measurements that are collected before they are sent."""
_FLUSH_S = 1.0
"""Seconds after which a change of phase sends whatever was collected."""


@dataclass(slots=True, kw_only=True)
class Context:
    """One rank and the step that it is in.

    ``rank`` is the trial rank: the number the rank had at the start of the trial. ``group_rank`` is its number in the
    group of this generation (a generation is one restart attempt).
    """

    generation: int = 0
    rank: int
    local_rank: int
    local_world_size: int
    """Ranks of this generation on this node, this one included. They share the resources of the node."""
    node_rank: int
    node: str
    """Host name of the node."""
    address: str
    """Address of this node that the other nodes can reach."""
    group_rank: int
    world_size: int
    """Size of the group of this generation."""
    ranks: tuple[int, ...]
    """Trial rank of each group rank."""
    backend: str
    """``gloo``, ``nccl`` or ``mpi``."""
    device: Device
    faults: tuple[faults.Fault, ...] = ()
    """Faults planted in this trial; empty outside of drills."""
    phase_page: PhaseWriter
    """Shared memory in which the agent reads the current phase."""
    emit: Callable[[Event], None]
    """Sends one event."""
    group: dist.ProcessGroup | None = None
    """The world group, once ``bootstrap`` has formed it."""
    store: dist.TCPStore | None = None
    """The store of the rendezvous, once ``bootstrap`` has opened or joined it."""
    check: str = ""
    """Name of the check that runs now."""
    step: int = -1
    """Number of the step in the trial; -1 before the first."""
    stage: str = ""
    timeout_s: float = 0.0
    """Seconds from the start of this step to the conductor's deadline."""
    clock: tuple[float, float] | None = None
    """(offset_ms, accuracy_ms): this node's clock minus the conductor's, and its largest error; None: unknown."""
    given: dict[str, Any] = field(default_factory=dict)
    """Values that earlier steps shared with all ranks."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that this step shares."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What a stage keeps for the stages after it, in this process."""
    count: tuple[int, int] | None = None
    """Which of how many operations comes next, from 1, where the check knows: a report of a slow rank says how far it
    came."""
    _measurements: list[Measurement] = field(default_factory=list)
    _facts: list[Fact] = field(default_factory=list)
    _flushed_at: float = 0.0

    def begin(self, check: str, message: RankStep) -> None:
        """Enter the step that the conductor asks for."""
        self.check, self.step, self.stage = check, message["step"], message["stage"]
        self.timeout_s, self.given, self.shared, self.count = message["timeout_s"], message["given"], {}, None
        clock = message.get("clock")
        self.clock = (clock[0], clock[1]) if clock else None
        self._flushed_at = time.monotonic()
        self.phase_page.number = self.step * PHASES_PER_STEP
        self.phase_page.write(f"{check}/begin {self.stage}")

    def measurement(
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
        """Report one measured number; check, rank, node, device, generation and stage are filled in.

        A value that is not finite becomes the fact ``not_finite`` instead, since JSON has no such number.

        Args:
            name: What was measured, such as ``busbw``. One name always has the same unit.
            value: The number, in ``unit``.
            unit: The unit, such as ``GB/s``; ``1`` for a pure number.
            better: ``high`` or ``low`` is good; None: the number is for information.
            variant: Separates measurements of one name, such as a dtype or an operation.
            size_bytes: Message size, where the measurement has one.
            step: Training step, counted from 0, where the measurement has one.
            peer: Trial rank at the other end of a pair.
        """
        if not math.isfinite(value):
            self.fact("not_finite", {"measurement": name, "variant": variant, "step": step, "value": str(value)})
            return
        self._measurements.append(
            Measurement(
                check=self.check,
                name=name,
                value=float(value),
                unit=unit,
                better=better,
                rank=self.rank,
                peer=peer,
                variant=variant,
                size_bytes=size_bytes,
                step=step,
                device=self.device.name,
                node=self.node,
                generation=self.generation,
                stage=self.stage,
            )
        )
        if len(self._measurements) >= _FLUSH_AFTER:
            self.flush()

    def fact(self, name: str, value: Any) -> None:
        """Report an observation that is no number; ``value`` is JSON.

        With a number that is not finite it becomes the fact ``not_finite`` instead, since JSON has no such number.
        """
        if not _is_finite(value):
            name, value = "not_finite", {"measurement": name, "variant": "", "step": None, "value": str(value)[:100]}
        self._facts.append(
            Fact(
                check=self.check,
                name=name,
                value=value,
                rank=self.rank,
                generation=self.generation,
                stage=self.stage,
            )
        )

    def phase(self, label: str) -> None:
        """Report what comes next, *before* it begins: ``all_reduce 8 B``, ``step 12 backward``.

        Every rank passes the same phases in the same order, so the rank with the fewest is the one that the others wait
        for. A call takes about 10 microseconds.
        """
        count = f" ({self.count[0]} of {self.count[1]})" if self.count else ""
        self.phase_page.write(f"{self.check}/{label}{count}")
        if self.faults:
            faults.strike(self.faults, self.rank, self.check, label)
        if (self._measurements or self._facts) and time.monotonic() - self._flushed_at > _FLUSH_S:
            self.flush()

    def share(self, name: str, value: Any) -> None:
        """Give a JSON value to all ranks in the following steps; they read it from ``given``.

        For stages with ``shares``: values of that form, 1,000 bytes in each. In another stage they are refused.
        """
        self.shared[name] = value

    def flush(self) -> None:
        """Send the measurements and facts collected so far, so that they survive the death of this rank."""
        measurements = [measurement.to_json() for measurement in self._measurements]
        facts = [fact.to_json() for fact in self._facts]
        # Before they are sent: what cannot be sent is not tried again in the next step.
        self._measurements, self._facts, self._flushed_at = [], [], time.monotonic()
        if measurements:
            self.emit(
                MeasurementsEvent(kind="measurements", gen=self.generation, step=self.step, measurements=measurements)
            )
        if facts:
            self.emit(FactsEvent(kind="facts", gen=self.generation, step=self.step, facts=facts))


def _is_finite(value: Any) -> bool:
    """Return whether all numbers in a JSON value are finite."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
