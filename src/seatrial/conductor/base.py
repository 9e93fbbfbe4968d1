"""Common base of the conductors: tracks nodes, sends commands, extends deadlines by the time this process was paused.

A trial and a program differ in every decision (what ends a generation, who is suspected, what comes next) and share the
shell around it: agents join, are heard, are lost, receive heartbeats, kill their ranks and stop. That shell is here;
``trial_conductor.py`` and ``program_conductor.py`` fill in the decisions. Pure: no socket, no clock, no file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, cast

from seatrial.conductor.actions import Actions
from seatrial.conductor.config import Config, State
from seatrial.conductor.origin import brief, take_number, validate_form, validate_origin
from seatrial.conductor.rank_status import RankStatus
from seatrial.protocol.commands import AgentCommand, AgentReport, Heartbeat, Kill, Stop, Welcome
from seatrial.protocol.events import EndEvent, Event, InterruptedEvent, NoteEvent
from seatrial.protocol.timeouts import CONDUCTOR_SILENT_S, HEARTBEAT_S, NODE_SILENT_S, OUTPUT_S
from seatrial.util.text import all_named

END_S = 10.0
"""Seconds for ranks to quit or to be killed, and for agents to stop."""
_LONGEST_GAP_S = CONDUCTOR_SILENT_S - HEARTBEAT_S
"""Between two heartbeats; after a longer one agents take this process for dead."""
_MAX_SHOWN_PLACES = 4


class BaseConductor(ABC):
    """The nodes, the state and its deadline. ``_take`` returns the actions that gathered since the last call."""

    def __init__(self, config: Config, join_timeout_s: float, now: float) -> None:
        self._config = config
        self._join_timeout_s = join_timeout_s
        self.state = State.GATHER
        self._until = now + join_timeout_s
        """Deadline of the state."""
        self._nodes = {rank: rank // config.nproc_per_node for rank in range(config.world_size)}
        """Rank -> its node."""
        self._heard_at: dict[int, float] = {}
        """Node that joined -> time of its last message."""
        self._places: dict[int, str] = {}
        """Node that joined -> the host of the request, else the address that it joined from."""
        self._is_doubted = False
        """Whether some machine may count as several hosts."""
        self._numbers: dict[str, int] = {}
        """Source -> the number of its last event."""
        self._gone: set[int] = set()
        """Nodes that are lost."""
        self._generation = -1
        self._awaited: set[int] = set()
        """Nodes that have not sent ``killed`` yet."""
        self._interrupted_by = ""
        self._printing: set[tuple[int, int]] = set()
        """(rank, generation) of all that were started and whose last piece of output has not come."""
        self._stopped_at = 0.0
        """Time at which the agents were asked to stop."""
        self._actions = Actions()
        self._heartbeat_at = now
        self._last_gap = (-math.inf, 0.0)
        """End and length of the last gap between heartbeats after which agents take this process for dead."""
        self._read_until = now
        """All that had arrived by then was taken in. By this time, not by ``now``, a node is silent, still or late: an
        answer may lie unread for as long as it takes to read what others sent. A deadline is set from ``now`` on."""

    # The server's calls (actions.Conductor)

    def join(self, node: int, now: float, place: str = "") -> Actions:
        """Welcome an agent that proved that it knows the token; begin once all are there."""
        self._places.setdefault(node, place or self._config.host_name(node))
        self._heard_at[node] = now
        self._send(node, Welcome(kind="welcome", run=self._config.run))
        if self.state in (State.STOP, State.OVER):
            self._send(node, Stop(kind="stop"))
        if self.state is State.GATHER and len(self._heard_at) == self._config.nodes:
            self._find_machines()
            self._begin(now)
        return self._take()

    def message(self, node: int, message: dict[str, Any], now: float) -> Actions:
        """Take in a message or an event of a node that joined.

        Raises KeyError, TypeError, ValueError or AttributeError for a malformed message, which has no effect, and
        OriginError for a message in the name of another node or rank, and NumberError for an event out of order, which
        must not be recorded either.
        """
        self._heard_at[node] = now
        validate_origin(node, message, self._nodes, self._config.run)
        take_number(message, self._numbers)
        validate_form(message)
        received = cast("AgentReport | Event", message)
        match received["kind"]:
            case "status":
                take_status(self._statuses(), received["ranks"], now)
                self._take_still(received.get("still", {}), now)
            case "killed" if self.state is State.KILL and received["gen"] == self._generation:
                self._awaited.discard(node)
                self._after_kill(now)
            case "end" if received.get("src") == f"node{node}":
                self._agent_ended(node, received, now)
            case "log":
                printed = (received["rank"], received["gen"])
                # The agents send what is left of the output when all ranks have ended.
                if self.state is State.STOP and printed in self._printing:
                    self._until = max(self._until, min(now, self._stopped_at + OUTPUT_S) + END_S)
                if received["last"] is True:
                    self._printing.discard(printed)
            case _:
                self._receive(node, received, now)
        return self._take()

    def lost(self, node: int, detail: str, now: float) -> Actions:
        """Take note that the connection of a node is closed, or that its agent ended. ``detail``: how."""
        self._lose(node, detail, now)
        return self._take()

    def interrupt(self, by: str, now: float) -> Actions:
        """End the run early and keep what was measured. ``by``: name of the signal, or the reason."""
        self._interrupt(by, now)
        return self._take()

    def paused(self, missed_s: float) -> None:
        """Extend all deadlines: this process did not run for so long, which counts for nobody."""
        self._heard_at = {node: at + missed_s for node, at in self._heard_at.items()}
        self._until += missed_s
        self._stopped_at += missed_s
        self._shift(missed_s)

    def tick(self, now: float, read_until: float) -> Actions:
        """Act on the time that has passed: heartbeats, silent nodes, hangs, deadlines."""
        self._read_until = read_until
        if now - self._heartbeat_at >= HEARTBEAT_S:
            if now - self._heartbeat_at > _LONGEST_GAP_S:
                self._last_gap = (now, now - self._heartbeat_at)
            self._heartbeat_at = now
            self._send_all(Heartbeat(kind="heartbeat"))
        for node, heard_at in self._heard_at.items():
            if node not in self._gone and self._is_silent(node):
                self._node_silent(node, read_until - heard_at, now)
        if self.state in (State.AGENTS, State.START, State.STEP, State.RUN):
            self._watch(now)
        elif read_until >= self._until:
            self._overdue(now)
        return self._take()

    # The decisions of a trial or a program

    @abstractmethod
    def _begin(self, now: float) -> None:
        """Leave GATHER: all agents joined."""

    @abstractmethod
    def _absent(self, nodes: list[int], now: float) -> None:
        """Leave GATHER: these nodes did not join in time."""

    @abstractmethod
    def _statuses(self) -> Mapping[int, RankStatus]:
        """Return the status of each rank of this generation."""

    @abstractmethod
    def _shift(self, missed_s: float) -> None:
        """Extend the deadlines of the ranks: this process was paused."""

    @abstractmethod
    def _receive(self, node: int, received: AgentReport | Event, now: float) -> None:
        """Take in any other message. Raises as ``message`` does."""

    @abstractmethod
    def _take_still(self, still: Mapping[str, list[float]], now: float) -> None:
        """Take in for how long the ranks of a script on one node have stood still, as ``Status`` has it."""

    @abstractmethod
    def _agent_ended(self, node: int, end: EndEvent, now: float) -> None:
        """Take in the last event of a node's agent."""

    @abstractmethod
    def _node_silent(self, node: int, silent_s: float, now: float) -> None:
        """Decide about a node that has sent nothing for NODE_SILENT_S. Called at each tick until it is gone."""

    @abstractmethod
    def _node_lost(self, node: int, detail: str, now: float) -> None:
        """Decide about a node that was just lost."""

    @abstractmethod
    def _watch(self, now: float) -> None:
        """Look for hangs and deadlines while agents or ranks run a step, and while ranks start or run a program."""

    @abstractmethod
    def _generation_killed(self, now: float) -> None:
        """Leave KILL: no rank is left. Start the next generation or stop."""

    @abstractmethod
    def _kill_overdue(self, nodes: list[int], now: float) -> None:
        """Take note of the nodes that did not report in time that their ranks are killed."""

    @abstractmethod
    def _state_overdue(self, now: float) -> None:
        """Leave a state of this kind of run whose deadline passed."""

    @abstractmethod
    def _end_early(self, now: float) -> None:
        """End the ranks: the run was just interrupted."""

    # Shared steps

    def _find_machines(self) -> None:
        """Let the agents of one host of the request have one place: all have joined.

        Doubt all where a machine has several places: it would have a vote for each.
        """
        config, first = self._config, dict[str, str]()
        for node in sorted(self._places):
            self._places[node] = first.setdefault(config.host_name(node), self._places[node])
        # Behind a proxy no place is known, and each node has its name.
        known: dict[str, list[str]] = {}
        for node, place in sorted(self._places.items()):
            if place != config.host_name(node):
                known.setdefault(place, []).append(str(node))
        if config.machines is not None and len(known) > config.machines:
            # A machine that joined from several addresses has fewer nodes at each than the others, often one.
            fewest = sorted(known.items(), key=lambda item: len(item[1]))[:_MAX_SHOWN_PLACES]
            shown = ", ".join(f"{place} ({all_named('node', nodes)})" for place, nodes in fewest)
            text = (
                f"agents joined from {len(known)} addresses, and the launcher started them on {config.machines}"
                f" machine{'' if config.machines == 1 else 's'}; one at several addresses would count as several hosts,"
                " so nobody can be blamed: let each machine join from one address;"
                f" {'those of the fewest nodes' if len(known) > len(fewest) else 'they'} are {shown}"
            )
            self._is_doubted = True
            self._record(NoteEvent(kind="note", severity="error", text=text, untrusted=sorted(self._places)))

    def _num_hosts(self) -> int:
        return len(set(self._places.values()))

    def _is_silent(self, node: int) -> bool:
        return self._read_until - self._heard_at.get(node, self._read_until) > NODE_SILENT_S

    def _unheard_s(self, node: int, now: float) -> float:
        """Return for how long the agents hear nothing from this process, or did not when it last heard that node.

        An agent that ends then, or whose connection breaks, does so because of this process. 0: they hear it.
        """
        if now - self._heartbeat_at > _LONGEST_GAP_S:
            return now - self._heartbeat_at
        ended_at, unheard_s = self._last_gap
        return unheard_s if self._heard_at.get(node, now) - ended_at < NODE_SILENT_S else 0.0

    def _note_started(self, ranks: Collection[int]) -> None:
        self._printing |= {(rank, self._generation) for rank in ranks}

    def _lose(self, node: int, detail: str, now: float) -> None:
        if node in self._gone or self.state is State.OVER:
            return
        self._gone.add(node)
        self._node_lost(node, detail, now)
        self._after_loss(node, now)

    def _after_loss(self, node: int, now: float) -> None:
        """Stop waiting for a lost node."""
        if self.state is State.KILL:
            self._awaited.discard(node)
            self._after_kill(now)
        elif self.state is State.STOP and self._all_gone():
            self._finish()

    def _interrupt(self, by: str, now: float) -> None:
        if self._interrupted_by or self.state in (State.STOP, State.OVER):
            return
        self._interrupted_by = by
        self._record(InterruptedEvent(kind="interrupted", by=by))
        self._end_early(now)

    def _kill(self, stacks: Collection[int], now: float) -> None:
        """Have all ranks killed. ``stacks``: ranks whose stacks the agents report first."""
        self.state = State.KILL
        self._until = now + END_S
        self._awaited = self._heard_at.keys() - self._gone
        self._send_all(Kill(kind="kill", gen=self._generation, stacks=list(stacks)))
        self._after_kill(now)

    def _after_kill(self, now: float) -> None:
        if not self._awaited:
            self._generation_killed(now)

    def _overdue(self, now: float) -> None:
        if self.state is State.GATHER:
            self._absent(sorted(set(range(self._config.nodes)) - self._heard_at.keys()), now)
        elif self.state is State.KILL:
            self._kill_overdue(sorted(self._awaited), now)
            self._gone |= self._awaited
            self._awaited = set()
            self._after_kill(now)
        elif self.state is State.STOP:
            self._finish()
        else:
            self._state_overdue(now)

    def _stop(self, now: float) -> None:
        self.state = State.STOP
        self._stopped_at = now
        self._until = now + END_S
        self._send_all(Stop(kind="stop"))
        if self._all_gone():
            self._finish()

    def _finish(self) -> None:
        self.state = State.OVER
        self._record(EndEvent(kind="end"))
        self._actions.over = True

    def _all_gone(self) -> bool:
        return self._heard_at.keys() <= self._gone

    # Actions

    def _send_all(self, command: AgentCommand) -> None:
        for node in self._heard_at:
            self._send(node, command)

    def _send(self, node: int, command: AgentCommand) -> None:
        if node not in self._gone:
            self._actions.send.append((node, command))

    def _record(self, event: Event) -> None:
        self._actions.events.append(event)

    def _note(self, text: str) -> None:
        self._record(NoteEvent(kind="note", severity="info", text=text))

    def _take(self) -> Actions:
        actions, self._actions = self._actions, Actions()
        return actions


def take_status(statuses: Mapping[int, RankStatus], ranks: Mapping[str, Any], now: float) -> None:
    """Update the statuses of a node's ranks. Raises ValueError, TypeError or AttributeError for a malformed report."""
    for rank, (state, cpu_s, number, phase, held_s) in ranks.items():
        status = statuses.get(int(rank))
        if status is not None:
            if not (isinstance(number, int) and -1e9 < cpu_s < 1e9 and -1e9 < held_s < 1e9):
                raise ValueError(
                    f"status of rank {rank}: {number!r} phases, {cpu_s!r} s of CPU time, {held_s!r} s without"
                )
            # A letter: findings show it, and a sentence in its place would be one of ours.
            status.update((brief(state, 1), cpu_s, number, brief(phase)), now, held_s)
