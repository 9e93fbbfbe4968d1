"""What the machine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from seatrial.conductor.steps import StepPlan

__all__ = ["Actions", "Conductor", "Config", "State"]


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
    next_round: Callable[[str, list[dict[str, Any]]], tuple[tuple[int, ...], Any] | None] = lambda check, events: None
    """(check, its events) -> the ranks to measure next and what they are told; None: nothing is left to ask. Pure."""
    join_timeout_s: float = 60.0
    start_timeout_s: float = 180.0
    most_generations: int = 3


@dataclass(slots=True)
class Actions:
    """What is to be done now: messages to nodes and events to keep, in order; ``over`` when all is done."""

    send: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    over: bool = False


class Conductor(Protocol):
    """What the server drives: pure, so every call says what time it is (monotonic seconds)."""

    def joined(self, node: int, now: float) -> Actions:
        """An agent with the right token came."""

    def message(self, node: int, message: dict[str, Any], now: float) -> Actions:
        """A message or an event of a node that joined.

        Raises KeyError, TypeError, ValueError or AttributeError for one that is malformed.
        """

    def lost(self, node: int, detail: str, now: float) -> Actions:
        """The connection of a node is gone, or its agent is."""

    def interrupt(self, by: str, now: float) -> Actions:
        """The user or the scheduler wants the end."""

    def tick(self, now: float) -> Actions:
        """Time has passed."""
