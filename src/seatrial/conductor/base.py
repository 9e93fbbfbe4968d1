"""What every conductor does: it hears nodes and tells them, and forgives everybody what its own clock missed. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from seatrial.conductor.hearsay import brief
from seatrial.conductor.records import Actions
from seatrial.conductor.watch import Pulse

__all__ = ["END_S", "NODE_SILENT_S", "BaseConductor", "take_status"]

NODE_SILENT_S = 15.0
END_S = 10.0
"""For the end of what was told to end: ranks, agents."""
_BEAT_S = 2.0
_MISSED_CLOCK_S = 2.0


class BaseConductor(ABC):
    """The nodes, our clock, and what is to be done: ``_take`` gives what gathered since the last time."""

    def __init__(self, until: float, now: float) -> None:
        self._do = Actions()
        self._clock_at = self._beat_at = now
        self._until = until
        """Deadline of the state that we are in."""
        self._heard_at: dict[int, float] = {}
        """Of every node that joined."""
        self._gone: set[int] = set()
        """Nodes that are lost."""
        self._generation = -1
        self._awaited: set[int] = set()
        """Nodes that have not said ``killed`` yet."""

    def _hear(self, node: int, now: float) -> None:
        self._pass_time(now)
        self._heard_at[node] = now

    def _pass_time(self, now: float) -> None:
        """Before anything else that comes in: what came meanwhile must not be taken for later than it was."""
        missed_s, self._clock_at = now - self._clock_at, now
        if missed_s > _MISSED_CLOCK_S:
            # We were stopped, or the whole machine was: nobody else was silent meanwhile.
            self._heard_at = {node: at + missed_s for node, at in self._heard_at.items()}
            self._until += missed_s
            self._shift(missed_s)

    @abstractmethod
    def _shift(self, missed_s: float) -> None:
        """The same for the ranks."""

    def _beat(self, now: float) -> None:
        """Now and then: a node that hears nothing ends its ranks."""
        if now - self._beat_at >= _BEAT_S:
            self._beat_at = now
            self._tell_nodes({"kind": "beat"})

    def _tell_kill(self, stacks: Collection[int], now: float) -> None:
        self._until = now + END_S
        self._awaited = self._heard_at.keys() - self._gone
        self._tell_nodes({"kind": "kill", "gen": self._generation, "stacks": list(stacks)})

    def _all_gone(self) -> bool:
        return self._heard_at.keys() <= self._gone

    def _tell_nodes(self, message: dict[str, Any]) -> None:
        for node in self._heard_at:
            self._send(node, message)

    def _send(self, node: int, message: dict[str, Any]) -> None:
        if node not in self._gone:
            self._do.send.append((node, message))

    def _tell(self, kind: str, **payload: Any) -> None:
        self._do.events.append((kind, payload))

    def _tell_end(self) -> None:
        self._tell("end")
        self._do.over = True

    def _take(self) -> Actions:
        done, self._do = self._do, Actions()
        return done


def take_status(pulses: Mapping[int, Pulse], ranks: Mapping[str, Any], now: float) -> None:
    """Of the ranks of a node. Raises ValueError, TypeError or AttributeError for one that is malformed."""
    for rank, (state, cpu_s, number, phase) in ranks.items():
        pulse = pulses.get(int(rank))
        if pulse is not None:
            if not (isinstance(number, int) and -1e9 < cpu_s < 1e9):
                raise ValueError(f"a status of rank {rank} with {number!r} phases and {cpu_s!r} s of CPU time")
            pulse.update((brief(state), cpu_s, number, brief(phase)), now)
