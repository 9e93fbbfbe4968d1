"""The parts of a simulated fleet, the faults in it, and the record of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.conductor.steps import StepPlan
from seatrial.protocol.events import Source

__all__ = [
    "BEHIND",
    "EPOCH_S",
    "INSIDE",
    "QUIT",
    "SLOW_S",
    "START",
    "STEPS",
    "Planted",
    "RunRecord",
    "SimulatedAgent",
    "SimulatedRank",
]

EPOCH_S = 1_000.0
SLOW_S = 35.0
START = -1
QUIT = 1_000_000
"""Numbers of the two times, besides the steps, at which something can be planted."""


def _shares(values: dict[str, object]) -> bool:
    return values.keys() == {"store"} and isinstance(values["store"], dict)


STEPS = (
    StepPlan(check="compute", scope="alone", timeout_s=40.0),
    StepPlan(check="bootstrap", scope="bootstrap", stage="store", shares=_shares, last_stage=False, timeout_s=40.0),
    StepPlan(check="bootstrap", scope="bootstrap", stage="world", timeout_s=40.0),
    StepPlan(check="collectives", scope="world", timeout_s=40.0),
    StepPlan(check="training", scope="world", timeout_s=40.0),
)
_LOOP = '  File "/x/seatrial/worker/step.py", line 9 in run_step\n'
_LOOP += '  File "/x/seatrial/worker/worker_main.py", line 9 in main\n'
INSIDE = 'Current thread 0x1 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 9 in wait\n' + _LOOP
BEHIND = 'Current thread 0x1 (most recent call first):\n  File "/x/seatrial/checks/a.py", line 9 in measure\n' + _LOOP
"""Stacks in faulthandler's words: of a rank inside the collective, and of one that never entered it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault, in generation 0. ``at``: number of the step, START or QUIT."""

    kind: Literal[
        "dead",
        "error",
        "stopped",
        "absent",
        "hang",
        "slow",
        "agent-lost",
        "agent-silent",
        "agent-signaled",
        "agent-quits",
        "deaf",
        "terminated",
        "canceled",
    ]
    """``hang``: it enters no operation that the others are in, at the same phase. ``slow``: it computes for SLOW_S
    before it does. ``deaf``: it does not quit. ``terminated``: SIGTERM ends it; ``canceled``: and its agent reports
    that signal a second and a half later."""
    rank: int
    """Its node, for a fault of the agent."""
    at: int = 0
    cause: str = "own"


@dataclass(slots=True, kw_only=True)
class SimulatedRank:
    """One simulated rank of the current generation."""

    rank: int
    source: Source
    state: str = "S"
    cpu_s: float = 1.0
    number: int = 1
    phase: str = "start-up/import torch"
    stack: str = INSIDE
    computes: bool = False
    """CPU time is used."""
    fault: Planted | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedAgent:
    """One simulated agent and its connection."""

    node: int
    source: Source
    ranks: dict[int, SimulatedRank] = field(default_factory=dict)
    generation: int = -1
    open: bool = True
    silent: bool = False
    heard_at: float = EPOCH_S
    to_agent: float = 0.0
    to_conductor: float = 0.0


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """The record of a simulated run."""

    events: list[dict[str, Any]] = field(default_factory=list)
    """The events that a recorder would have, with the numbers of their sources."""
    seconds: float = 0.0
    """Simulated, from the first agent's start to the end."""
    generations: list[tuple[int, ...]] = field(default_factory=list)
    messages: int = 0
    refused: list[Exception] = field(default_factory=list)
    """Errors that the conductor raised for a message."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the conductor's events of a kind."""
        return [event for event in self.events if event["src"] == "conductor" and event["kind"] == kind]

    def seen(self, *hows: str) -> list[tuple[str, int]]:
        """(how, rank or node) of every trouble, all of them when none is named."""
        return [
            (seen["how"], seen["node"] if "node" in seen else seen["rank"])
            for event in self.of("trouble")
            for seen in event["seen"]
            if not hows or seen["how"] in hows
        ]

    def steps(self, generation: int) -> list[tuple[str, str]]:
        """(check, stage) of each step that was asked in a generation."""
        return [(event["check"], event["stage"]) for event in self.of("step") if event["gen"] == generation]
