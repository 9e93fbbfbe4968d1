"""One step of one check on one rank: the context that ``measure`` is given, and what is sent of it."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from seatrial.checks.base import Check
from seatrial.probe.phase import PhaseWriter
from seatrial.verdict.figures import Better, Fact, Figure
from seatrial.worker import failures, inject
from seatrial.worker.device import Device

__all__ = ["PHASES_PER_STEP", "RankContext", "run_step"]

PHASES_PER_STEP = 10**9
"""Phase numbers start anew in each step, so that ranks which had one step more are comparable with the others."""
_FLUSH_AFTER = 40
_FLUSH_S = 1.0


@dataclass(slots=True, kw_only=True)
class RankContext:
    """``worker.context.Context`` as a rank has it: who it is, for its whole life, and the step that it is in."""

    run: str
    generation: int
    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node: str
    address: str
    group_rank: int
    world_size: int
    ranks: tuple[int, ...]
    backend: str
    device: Device
    faults: tuple[inject.Fault, ...]
    phases: PhaseWriter
    emit: Callable[..., None]
    """Send one event: ``emit(kind, **payload)``."""
    group: Any = None
    store: Any = None
    check: str = ""
    step: int = -1
    stage: str = ""
    timeout_s: float = 0.0
    clock: tuple[float, float] | None = None
    given: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    _figures: list[Figure] = field(default_factory=list)
    _facts: list[Fact] = field(default_factory=list)
    _flushed_at: float = 0.0

    def begin(self, check: str, message: dict[str, Any]) -> None:
        """Enter the step that the conductor asks for."""
        self.check, self.step, self.stage = check, message["step"], message["stage"]
        self.timeout_s, self.given, self.shared = message["timeout_s"], message["given"], {}
        clock = message.get("clock")
        self.clock = (clock[0], clock[1]) if clock else None
        self._flushed_at = time.monotonic()
        self.phases.number = self.step * PHASES_PER_STEP
        self.phases.write(f"{check}/begin {self.stage}")

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
        if not math.isfinite(value):
            # JSON has no such number, and a figure that is none must not look like one.
            self.fact("not_finite", {"figure": name, "variant": variant, "step": step, "value": str(value)})
            return
        self._figures.append(
            Figure(
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
        if len(self._figures) >= _FLUSH_AFTER:
            self.flush()

    def fact(self, name: str, value: Any) -> None:
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
        self.phases.write(f"{self.check}/{label}")
        if self.faults:
            inject.strike(self.faults, self.rank, self.check, label)
        if (self._figures or self._facts) and time.monotonic() - self._flushed_at > _FLUSH_S:
            self.flush()

    def share(self, name: str, value: Any) -> None:
        self.shared[name] = value

    def flush(self) -> None:
        """Send what was measured so far: what has left the rank survives its death."""
        where = {"gen": self.generation, "step": self.step}
        if self._figures:
            self.emit("figures", **where, figures=[figure.to_json() for figure in self._figures])
        if self._facts:
            self.emit("facts", **where, facts=[fact.to_json() for fact in self._facts])
        self._figures, self._facts, self._flushed_at = [], [], time.monotonic()


def run_step(context: RankContext, check: Check, message: dict[str, Any]) -> None:
    """Measure one stage and say ``done`` or ``error``."""
    context.begin(check.name, message)
    where = {"gen": context.generation, "step": context.step, "rank": context.rank}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in message["params"].items()}
    started = time.perf_counter()
    try:
        if context.faults:
            inject.strike(context.faults, context.rank, check.name, None)
        check.measure(context, check.params(**values))
        context.device.synchronize()
    except Exception as error:
        phase = context.phases.label
        context.flush()
        context.emit(
            "error",
            **where,
            cause=failures.cause_of(error),
            type=type(error).__name__,
            message=str(error)[:2000],
            stack=traceback.format_exc()[-6000:],
            phase=phase,
        )
        return
    context.phases.write(f"{check.name}/done {context.stage}")
    context.flush()
    context.emit("done", **where, seconds=round(time.perf_counter() - started, 6), share=context.shared)
