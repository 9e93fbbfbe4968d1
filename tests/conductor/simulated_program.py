"""Simulated agents of a program: each rank follows a script on a simulated clock, under a real conductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from conductor.simulated_clock import SimulatedClock
from event_streams import event_of

from seatrial.conductor.actions import Actions
from seatrial.conductor.config import ProgramConfig
from seatrial.conductor.program_conductor import ProgramConductor
from seatrial.protocol.events import Source

__all__ = ["Act", "SimulatedProgram", "config"]

_GIVE_UP_S = 2_000.0


def config(**changes: Any) -> ProgramConfig:
    """Two nodes with two ranks each, unless something else is said."""
    given = {"run": "simulated", "nodes": 2, "nproc_per_node": 2, "argv": ("x",), "env": {}, "watched": True}
    return ProgramConfig(**{**given, **changes})


@dataclass(frozen=True, kw_only=True)
class Act:
    """What a rank does, so many seconds after it was started."""

    at_s: float
    what: str
    """``exit``, ``error``, ``result``, ``stop`` (state T), ``disk`` (state D) or ``move`` (back to R).
    ``never ready``: it is in this phase from its start."""
    code: int = 0
    cause: str = ""
    phase: str = "step 7 forward"
    number: int = 3
    """Phases entered until then."""
    last: tuple[str, ...] = ("its last",)


_ENDS_WELL = (Act(at_s=4.9, what="result"), Act(at_s=5.0, what="exit"))
_STOPPED = Act(at_s=0.0, what="exit", code=130)


@dataclass(kw_only=True)
class _Rank:
    node: int
    state: str = "S"
    cpu_s: float = 0.0
    phase: str = "step 7 forward"
    number: int = 3
    signaled: bool = False


@dataclass(kw_only=True)
class _Agent:
    source: Source
    open: bool = True
    generation: int = -1
    ranks: dict[int, _Rank] = field(default_factory=dict)


class SimulatedProgram(SimulatedClock):
    """``script``: (generation, rank) -> its acts; without any a rank ends with 0 after five seconds."""

    def __init__(
        self,
        settings: ProgramConfig,
        script: Mapping[tuple[int, int], Sequence[Act]] | None = None,
        *,
        joins: Sequence[int] | None = None,
        places: Sequence[str] = (),
        heeds_sigterm_after_s: float | None = 0.5,
        at_s: Sequence[tuple[float, Callable[[SimulatedProgram], None]]] = (),
        stacks: Mapping[int, Mapping[str, Any]] | None = None,
        unread: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """``stacks``: rank -> what its agent answers to ``dump_stack``. ``unread``: as of ``SimulatedFleet``.

        ``heeds_sigterm_after_s``: so long after SIGTERM ranks end, by 130; None: never. ``at_s``: more to happen."""
        super().__init__(0.0)
        self._places = places
        self.conductor = ProgramConductor(settings, 0.0)
        self.events: list[Any] = []
        self.sent: list[tuple[float, int, Any]] = []
        self._script = script or {}
        self._heeds_s = heeds_sigterm_after_s
        self._over = False
        self._unread = (unread[0], unread[0] + unread[1])
        self._stacks = stacks or {}
        self.agents = {
            node: _Agent(source=Source("simulated", f"node{node}", lambda: self.now))
            for node in (joins if joins is not None else range(settings.nodes))
        }
        for node in self.agents:
            self.later(0.5 + 0.1 * node, partial(self._join, node))
        for delay_s, action in at_s:
            self.later(delay_s, partial(action, self))
        self._tick()

    def run(self) -> dict[str, Any]:
        """Until it is over; the payload of ``outcome``."""
        while not self._over:
            assert self.now < _GIVE_UP_S, "it never ends"
            self.act_next()
        (outcome,) = self.recorded("outcome")
        return outcome

    def go_on_until(self, now: float) -> None:
        """Until that time."""
        while self.now < now:
            self.act_next()

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def asked(self, kind: str) -> list[tuple[float, int, Any]]:
        """When which node was sent a message of that kind."""
        return [entry for entry in self.sent if entry[2]["kind"] == kind]

    def interrupt(self) -> None:
        self.signal("SIGINT")

    def signal(self, name: str) -> None:
        self._carry_out(self.conductor.interrupt(name, self.now))

    def lose(self, node: int) -> None:
        """The connection of a node breaks, with its ranks."""
        self.agents[node].open = False
        self._carry_out(self.conductor.lost(node, "the control connection was closed", self.now))

    def mute(self, node: int) -> None:
        self.agents[node].open = False

    def say(self, node: int, message: dict[str, Any]) -> None:
        if self.agents[node].open:
            self._once_read(lambda: self.conductor.message(node, message, self.now))

    def _join(self, node: int) -> None:
        self._once_read(lambda: self.conductor.join(node, self.now, self._places[node] if self._places else ""))

    def _once_read(self, take_in: Callable[[], Actions]) -> None:
        start, end = self._unread
        if start <= self.now < end:
            self.later(end - self.now, lambda: self._carry_out(take_in()))
        else:
            self._carry_out(take_in())

    def _tick(self) -> None:
        for node, agent in self.agents.items():
            for rank in agent.ranks.values():
                rank.cpu_s += 0.9 if rank.state in "SR" else 0.0
            status = {
                str(number): [rank.state, rank.cpu_s, rank.number, rank.phase, 0.0]
                for number, rank in agent.ranks.items()
            }
            if agent.open and self.now > 1.0:
                self.say(node, {"kind": "status", "ranks": status})
        start, end = self._unread
        self._carry_out(self.conductor.tick(self.now, start if start <= self.now <= end else self.now))
        self.later(0.25, self._tick)

    def _carry_out(self, actions: Actions) -> None:
        self.events += actions.events
        self._over = self._over or actions.over
        for node, message in actions.send:
            self.sent.append((self.now, node, message))
            if node in self.agents and self.agents[node].open:
                self.later(0.01, partial(self._obey, node, message))

    def _obey(self, node: int, message: Any) -> None:
        agent, kind = self.agents[node], message["kind"]
        if kind == "welcome":
            self.say(node, event_of(agent.source, "node", node=node, hostname=f"n{node}"))
        elif kind == "port":
            self.say(
                node, {"kind": "port", "gen": message["gen"], "address": "10.0.0.1", "port": 5000 + message["gen"]}
            )
        elif kind == "start_program":
            agent.generation = message["gen"]
            for number, _ in message["places"]:
                acts = self._script.get((message["gen"], number), _ENDS_WELL)
                rank = agent.ranks[number] = _Rank(node=node)
                if stays := [act.phase for act in acts if act.what == "never ready"]:
                    rank.phase = stays[0]
                else:
                    self._event(rank, number, "rank")
                for act in acts:
                    self.later(act.at_s, partial(self._act, rank, number, act))
        elif kind == "dump_stack":
            for number, rank in agent.ranks.items():
                if number in self._stacks:
                    seen = {"state": "R", "wchan": "", "text": "", "quiet_s": 20.0, "last_line": "step 7"}
                    seen["number"] = message["number"]
                    self._event(rank, number, "stack", **{**seen, **self._stacks[number]})
        elif kind == "terminate" and self._heeds_s is not None:
            for number, rank in agent.ranks.items():
                rank.signaled = True
                if rank.state != "T":
                    self.later(self._heeds_s, partial(self._act, rank, number, _STOPPED))
        elif kind == "kill":
            for number, rank in list(agent.ranks.items()):
                rank.signaled = True
                self._act(rank, number, Act(at_s=0.0, what="exit", code=-9))
            self.say(node, {"kind": "killed", "gen": message["gen"]})
        elif kind == "stop":
            self.say(node, event_of(agent.source, "end"))

    def _event(self, rank: _Rank, number: int, kind: str, /, **payload: Any) -> None:
        agent = self.agents[rank.node]
        self.say(rank.node, event_of(agent.source, kind, gen=agent.generation, rank=number, **payload))

    def _act(self, rank: _Rank, number: int, act: Act) -> None:
        agent = self.agents[rank.node]
        if agent.ranks.get(number) is not rank or not agent.open:
            return
        if act.what == "exit":
            del agent.ranks[number]
            self._event(
                rank, number, "exit", code=act.code, ours=rank.signaled, phase=act.phase, last_lines=list(act.last)
            )
        elif act.what == "error":
            self._event(rank, number, "error", cause=act.cause, message=f"{act.cause} trouble")
        elif act.what == "result":
            self._event(rank, number, "result", code=act.code, lines=[])
        elif act.what in ("stop", "disk", "move"):
            rank.state, rank.phase = {"stop": "T", "disk": "D", "move": "R"}[act.what], act.phase
            rank.number = act.number
