"""Simulated agents: they drive a real ``TrialConductor`` on a simulated clock.

Each agent answers as ``agent.supervisor`` does, and each rank as ``worker.worker_main`` does, with random delays that a
seed gives. Measurements are not simulated. Messages of one agent keep their order in each direction, as on one
connection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from conductor.simulated_clock import SimulatedClock
from conductor.simulated_records import (
    BEHIND,
    EPOCH_S,
    INSIDE,
    QUIT,
    SLOW_S,
    START,
    STEPS,
    Planted,
    RunRecord,
    SimulatedAgent,
    SimulatedRank,
)
from event_streams import event_of

from seatrial.conductor.actions import Actions
from seatrial.conductor.config import State, TrialConfig
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.protocol.events import SCHEMA, Source

__all__ = ["SimulatedFleet"]

_AGENT_PATIENCE_S = 30.0


_STORE = {"host": "n0", "port": 1}


class SimulatedFleet(SimulatedClock):
    """A trial with ``nodes`` x ``nproc_per_node`` simulated ranks. ``run`` gives what came of it."""

    def __init__(
        self,
        *,
        nodes: int,
        nproc_per_node: int = 1,
        steps: tuple[StepPlan, ...] = STEPS,
        planted: tuple[Planted, ...] = (),
        seed: int = 0,
        deadline_s: float = 600.0,
        complain: bool = True,
        spins: bool = False,
        absent_nodes: frozenset[int] = frozenset(),
        suspended: tuple[float, float] = (0.0, 0.0),
        unread: tuple[float, float] = (0.0, 0.0),
        echo: float = 0.0,
        on_state: Mapping[State, Callable[[SimulatedFleet], None]] | None = None,
        at_s: Sequence[tuple[float, Callable[[SimulatedFleet], None]]] = (),
        suspects: Callable[[str, list[dict[str, Any]]], tuple[int, ...]] = lambda check, events: (),
        next_round: Callable[..., Any] = lambda check, events: None,
        fails: Callable[..., bool] = lambda check, events: False,
        late_nodes: frozenset[int] = frozenset(),
        shares: Mapping[int, Any] = MappingProxyType({}),
    ) -> None:
        """``complain``: ranks that meet in a step tell of a peer's death before its agent does. ``spins``: ranks that
        wait use CPU time. ``suspended``: the controller is stopped (from, for) so many seconds. ``unread``: from
        then on what is said lies unread for so many seconds. ``echo``: the part of all messages that come twice.
        ``shares``: what ranks share besides, or instead of, what they should, with each step.
        ``on_state``: called once, when that state is first seen. ``at_s``: called so many seconds from the start."""
        super().__init__(EPOCH_S)
        self.record = RunRecord()
        self._shares = shares
        self.config = TrialConfig(
            run="simulated",
            nodes=nodes,
            nproc_per_node=nproc_per_node,
            steps=steps,
            deadline_s=deadline_s,
            env={},
            device="cpu",
            backend="gloo",
            suspects=suspects,
            next_round=next_round,
            fails=fails,
        )
        self.conductor = TrialConductor(self.config, self.now)
        self._scopes = {step.check: step.scope for step in steps}
        self._planted, self._complain, self._spins = planted, complain, spins
        self._absent_nodes, self._late_nodes = absent_nodes, late_nodes
        self._suspended = (EPOCH_S + suspended[0], EPOCH_S + suspended[0] + suspended[1])
        self._unread = (EPOCH_S + unread[0], EPOCH_S + unread[0] + unread[1])
        self._on_state = dict(on_state or {})
        self._echo, self._at_s = echo, at_s
        self._random = random.Random(seed)
        self._source = Source("simulated", "conductor", lambda: self.now)
        self._agents: dict[int, SimulatedAgent] = {}
        self._members: set[int] = set()
        self._arrived: dict[int, int] = {}
        self._asked: dict[int, list[int]] = {}
        self._meetings: set[int] = set()
        """Steps whose ranks wait for one another."""
        self._over = False

    def run(self) -> RunRecord:
        """Until the run is over."""
        settings = {step.check: {"timeout_s": [step.timeout_s, "level simulated"]} for step in self.config.steps}
        plan = {
            "name": "simulated",
            "checks": list(settings),
            "not_asked": {},
            "deadline_s": [600.0, "level simulated"],
        }
        job = {"nodes": self.config.nodes, "world_size": self.config.nodes * self.config.nproc_per_node}
        self._keep("run", version="0", schema=SCHEMA, created=self.now, plan={**plan, "settings": settings}, job=job)
        for node in range(self.config.nodes):
            if node not in self._absent_nodes:
                self.later(self._random.uniform(0.1, 2.0), partial(self._join, node))
        start, end = self._suspended
        if start < end:
            self.later(end - self.now, partial(self.conductor.paused, end - start))
        for delay_s, disturb in self._at_s:
            self.later(delay_s, partial(disturb, self))
        self._tick()
        while not self._over:
            self.act_next()
        self.record.seconds = self.now - EPOCH_S
        return self.record

    def say(self, node: int, message: dict[str, Any]) -> None:
        """Hand the conductor a message of a node that has joined, and keep the error that it raises."""
        if node not in self._members:
            return
        self.record.messages += 1
        try:
            self._carry_out(self.conductor.message(node, message, self.now))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.record.refused.append(error)

    def interrupt(self) -> None:
        """The user wants the end."""
        self._carry_out(self.conductor.interrupt("SIGINT", self.now))

    def mute(self, node: int) -> None:
        """The agent of a node is stopped; its connection stays."""
        self._agents[node].silent = True

    def lose(self, node: int) -> None:
        """The connection of a node breaks, and its agent ends. One that never joined: its launcher says so."""
        agent = self._agents.get(node)
        if agent is None:
            self._carry_out(self.conductor.lost(node, "never came", self.now))
            return
        if not agent.open:
            return
        agent.open = False
        self._to_conductor(agent, lambda: self._carry_out(self.conductor.lost(node, "closed", self.now)))

    # The clock, and the two directions of each connection

    def _tick(self) -> None:
        start, end = self._suspended
        if start <= self.now < end:
            # What comes first when it wakes, a tick or what was said meanwhile, is not to matter.
            self.later(end - self.now + self._random.choice((0.0, 0.05)), self._tick)
            return
        start, end = self._unread
        self._carry_out(self.conductor.tick(self.now, start if start <= self.now < end + 0.1 else self.now))
        self.later(0.25, self._tick)

    def _to_conductor(self, agent: SimulatedAgent, action: Callable[[], None]) -> None:
        at = max(self.now + self._random.uniform(0.0005, 0.02), agent.to_conductor + 1e-6)
        for start, end in (self._suspended, self._unread):
            at = end + 0.0005 if start <= at < end else at
        agent.to_conductor = at
        self.later(at - self.now, action)

    def _send(self, agent: SimulatedAgent, message: dict[str, Any]) -> None:
        if agent.silent or not agent.open:
            return
        if "seq" in message:
            self.record.events.append(message)
        self._to_conductor(agent, partial(self.say, agent.node, message))
        if self._random.random() < self._echo:
            self.later(self._random.uniform(0.1, 3.0), partial(self.say, agent.node, message))

    def _keep(self, kind: str, **payload: Any) -> None:
        self.record.events.append(event_of(self._source, kind, **payload))

    def _carry_out(self, actions: Actions) -> None:
        for event in actions.events:
            self.record.events.append(self._source.event(event))
            match event["kind"]:
                case "generation":
                    self.record.generations.append(tuple(row[0] for row in event["ranks"]))
                case "step":
                    number = event["step"]
                    self._asked[number] = event["ranks"]
                    self._arrived[number] = 0
                    if self._scopes[event["check"]] != "alone" and event["stage"] not in ("store", "repeat"):
                        self._meetings.add(number)
        for node, message in actions.send:
            agent = self._agents[node]
            agent.to_agent = max(self.now + self._random.uniform(0.0005, 0.02), agent.to_agent + 1e-6)
            self.later(agent.to_agent - self.now, partial(self._obey, agent, cast("dict[str, Any]", message)))
        self._over = self._over or actions.over
        disturb = self._on_state.pop(self.conductor.state, None)
        if disturb is not None:
            self.later(0.0, lambda: disturb(self))

    # An agent

    def _join(self, node: int) -> None:
        agent = SimulatedAgent(
            node=node, source=Source("simulated", f"node{node}", lambda: self.now), heard_at=self.now
        )
        self._agents[node] = agent

        def join() -> None:
            self._members.add(node)
            self._carry_out(self.conductor.join(node, self.now))

        self._to_conductor(agent, join)
        self.later(1.0, partial(self._send_status, agent))

    def _send_status(self, agent: SimulatedAgent) -> None:
        if not agent.open:
            return
        if self.now - agent.heard_at > _AGENT_PATIENCE_S:
            self._send(
                agent, event_of(agent.source, "note", severity="error", text="received nothing from the controller")
            )
            self._end_agent(agent)
            return
        for rank in agent.ranks.values():
            rank.cpu_s += rank.computes
        ranks = {
            str(rank.rank): [rank.state, rank.cpu_s, rank.number, rank.phase, 0.0] for rank in agent.ranks.values()
        }
        self._send(agent, {"kind": "status", "ranks": ranks})
        self.later(1.0, partial(self._send_status, agent))

    def _obey(self, agent: SimulatedAgent, message: dict[str, Any]) -> None:
        if not agent.open or agent.silent:
            return
        agent.heard_at = self.now
        kind = message["kind"]
        if kind == "welcome":
            self._send(agent, event_of(agent.source, "node", node=agent.node, hostname=f"n{agent.node}", cores=1))
        elif kind == "start_workers":
            agent.generation = message["gen"]
            for rank, local_rank in message["places"]:
                source = Source("simulated", f"rank{rank}.{agent.generation}", lambda: self.now)
                agent.ranks[rank] = started = SimulatedRank(rank=rank, source=source)
                self._soon(agent, started, self._ready, local_rank)
        elif kind == "step":
            for rank in message["ranks"]:
                if rank in agent.ranks:
                    self._enter(agent, agent.ranks[rank], message)
        elif kind == "node_step":
            self.later(self._random.uniform(0.05, 0.3), partial(self._finish_node_step, agent, message))
        elif kind == "dump_stack":
            self._report_stacks(agent, message["ranks"], number=message["number"])
        elif kind == "kill":
            self._report_stacks(agent, message["stacks"])
            self._end_ranks(agent)
            self._send(agent, {"kind": "killed", "gen": message["gen"]})
        elif kind == "quit":
            for started in list(agent.ranks.values()):
                self._soon(agent, started, self._quit)
        elif kind == "stop":
            self._end_agent(agent)

    def _finish_node_step(self, agent: SimulatedAgent, message: dict[str, Any]) -> None:
        if agent.node not in self._late_nodes:
            where = {"gen": message["gen"], "step": message["step"], "seconds": 0.1}
            self._send(agent, event_of(agent.source, "node_done", **where, share=[agent.node], error=""))

    def _report_stacks(self, agent: SimulatedAgent, ranks: list[int], **request: int) -> None:
        for rank in agent.ranks.values():
            if rank.rank in ranks:
                text = "" if rank.state == "T" else rank.stack
                what = {"gen": agent.generation, "rank": rank.rank, "state": rank.state, "wchan": "", "text": text}
                self._send(agent, event_of(agent.source, "stack", **what, **request))

    def _end_ranks(self, agent: SimulatedAgent) -> None:
        for rank in list(agent.ranks.values()):
            self._exit(agent, rank, -9, ours=True)

    def _signal(self, agent: SimulatedAgent, at: int) -> None:
        """It says so, ends its ranks, whose peers complain before these have ended, and then itself."""
        self._send(agent, {"kind": "signal", "number": 15})
        if self._complain and at in self._meetings:
            for rank in agent.ranks.values():
                self._peers_complain(at, rank)
        self.later(1.6, lambda: self._end_agent(agent))

    def _end_agent(self, agent: SimulatedAgent) -> None:
        """Its ranks end, and then the agent."""
        self._end_ranks(agent)
        self._send(agent, event_of(agent.source, "end"))
        self.lose(agent.node)

    def _exit(self, agent: SimulatedAgent, rank: SimulatedRank, code: int, *, ours: bool) -> None:
        if agent.ranks.get(rank.rank) is rank:
            del agent.ranks[rank.rank]
            what = {"gen": agent.generation, "rank": rank.rank, "code": code, "ours": ours, "phase": rank.phase}
            self._send(agent, event_of(agent.source, "exit", **what, last_lines=[]))

    # A rank

    def _strike(self, agent: SimulatedAgent, rank: SimulatedRank, at: int) -> bool:
        """Whether something was planted here, which is then done."""
        if agent.generation != 0:
            return False
        for fault in self._planted:
            whose = agent.node if fault.kind.startswith("agent") else rank.rank
            if (fault.at, fault.rank) == (at, whose):
                rank.fault = fault
                self._do(agent, rank, fault, at)
                return True
        return False

    def _do(self, agent: SimulatedAgent, rank: SimulatedRank, fault: Planted, at: int) -> None:
        if fault.kind == "dead":
            self.later(0.1, lambda: self._exit(agent, rank, -9, ours=False))
            if self._complain and at in self._meetings:
                self._peers_complain(at, rank)
        elif fault.kind in ("terminated", "canceled"):
            self.later(0.1, lambda: self._exit(agent, rank, -15, ours=False))
            if self._complain and at in self._meetings:
                self._peers_complain(at, rank)
            if fault.kind == "canceled":
                self.later(1.6, lambda: self._signal(agent, at))
        elif fault.kind == "error":
            self._fail(agent, rank, at, fault.cause)
        elif fault.kind == "stopped":
            rank.state = "T"
        elif fault.kind == "agent-lost":
            self.lose(agent.node)
        elif fault.kind == "agent-silent":
            agent.silent = True
        elif fault.kind == "agent-signaled":
            self._signal(agent, at)
        elif fault.kind == "agent-quits":
            self._end_agent(agent)

    def _peers_complain(self, at: int, dying: SimulatedRank) -> None:
        for agent, rank in self._everybody():
            if rank is not dying:
                self.later(self._random.uniform(0.005, 0.05), partial(self._fail, agent, rank, at, "fabric"))

    def _everybody(self) -> list[tuple[SimulatedAgent, SimulatedRank]]:
        return [(agent, rank) for agent in self._agents.values() for rank in agent.ranks.values()]

    def _soon(self, agent: SimulatedAgent, rank: SimulatedRank, action: Callable[..., None], *arguments: Any) -> None:
        """After a moment of work, if the rank is then still there."""

        def act() -> None:
            if agent.ranks.get(rank.rank) is rank:
                action(agent, rank, *arguments)

        self.later(self._random.uniform(0.05, 0.3), act)

    def _fail(self, agent: SimulatedAgent, rank: SimulatedRank, at: int, cause: str) -> None:
        if agent.ranks.get(rank.rank) is rank:
            words = {"cause": cause, "type": "RuntimeError", "message": "planted", "stack": "", "phase": rank.phase}
            what = {"gen": agent.generation, "step": -1 if at == START else at, "rank": rank.rank}
            self._send(agent, event_of(rank.source, "error", **what, **words))

    def _ready(self, agent: SimulatedAgent, rank: SimulatedRank, local_rank: int) -> None:
        if self._strike(agent, rank, START):
            return
        rank.number, rank.phase = 2, "ready"
        where = {
            "node": f"n{agent.node}",
            "node_rank": agent.node,
            "hostname": f"n{agent.node}",
            "local_rank": local_rank,
        }
        what = {"device": "simulated", "device_type": "cpu", "libraries": "none", "backend": "gloo"}
        self._send(agent, event_of(rank.source, "rank", gen=agent.generation, rank=rank.rank, **where, **what))

    def _enter(self, agent: SimulatedAgent, rank: SimulatedRank, message: dict[str, Any]) -> None:
        number, check = message["step"], message["check"]
        if number in self._meetings:
            assert message["given"].keys() <= {"store", *(f"x/{other}" for other in range(99))}
            assert message["given"]["store"] == _STORE, f"rank {rank.rank} did not receive the store in {check}"
        rank.number, rank.phase = number * 10**9 + 1, f"{check}/begin {message['stage']}"
        struck = self._strike(agent, rank, number)
        if struck and rank.fault is not None and rank.fault.kind not in ("hang", "slow"):
            rank.stack = BEHIND if rank.fault.kind == "absent" else rank.stack
            return
        rank.number, rank.phase = number * 10**9 + 2, f"{check}/meet"
        if struck:
            rank.stack = BEHIND
            if rank.fault is not None and rank.fault.kind == "slow":
                rank.computes = True
                self.later(SLOW_S, partial(self._meet, agent, rank, message))
            return
        self._meet(agent, rank, message)

    def _meet(self, agent: SimulatedAgent, rank: SimulatedRank, message: dict[str, Any]) -> None:
        number = message["step"]
        rank.stack, rank.computes = INSIDE, self._spins and number in self._meetings
        if number not in self._meetings:
            self._soon(agent, rank, self._done, message)
            return
        self._arrived[number] += 1
        if self._arrived[number] == len(self._asked[number]):
            for peer_agent, peer in self._everybody():
                self._soon(peer_agent, peer, self._done, message)

    def _done(self, agent: SimulatedAgent, rank: SimulatedRank, message: dict[str, Any]) -> None:
        number, stage = message["step"], message["stage"]
        rank.number, rank.phase = number * 10**9 + 3, f"{message['check']}/done {stage}"
        rank.cpu_s += 0.3
        rank.computes = False
        where = {"gen": agent.generation, "step": number}
        measurement = {
            "check": message["check"],
            "name": "x",
            "value": 1.0,
            "unit": "1",
            "rank": rank.rank,
            "stage": stage,
        }
        measurement |= {"generation": agent.generation}
        self._send(agent, event_of(rank.source, "measurements", **where, measurements=[measurement]))
        share = {"store": _STORE} if stage == "store" else {}
        if rank.rank in self._shares:
            also = self._shares[rank.rank]
            share = {**share, **also} if isinstance(also, dict) else also
        self._send(agent, event_of(rank.source, "done", **where, rank=rank.rank, seconds=0.1, share=share))

    def _quit(self, agent: SimulatedAgent, rank: SimulatedRank) -> None:
        if any((fault.kind, fault.rank) == ("deaf", rank.rank) for fault in self._planted):
            return
        if not self._strike(agent, rank, QUIT):
            self._send(agent, event_of(rank.source, "end"))
            self._exit(agent, rank, 0, ours=True)
