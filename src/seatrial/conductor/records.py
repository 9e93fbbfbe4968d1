"""What the machine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from seatrial.conductor.steps import StepPlan

__all__ = ["Actions", "Config", "State"]


class State(Enum):
    """Where the trial is."""

    GATHER = "gather"
    START = "start"
    STEP = "step"
    KILL = "kill"
    QUIT = "quit"
    STOP = "stop"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the machine has to conduct."""

    run: str
    nodes: int
    nproc_per_node: int
    steps: tuple[StepPlan, ...]
    deadline_s: float
    worker: dict[str, Any]
    """Device, backend, environment and planted faults, as agents hand them to ranks."""
    suspects: Callable[[str, list[dict[str, Any]]], tuple[int, ...]]
    """(check, its events) -> ranks to measure again, one after the other. Pure."""
    join_timeout_s: float = 60.0
    start_timeout_s: float = 180.0
    most_generations: int = 3


@dataclass(slots=True)
class Actions:
    """What is to be done now: messages to nodes and events to keep, in order; ``over`` when all is done."""

    send: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    over: bool = False
