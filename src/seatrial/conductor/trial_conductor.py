"""The conductor of a trial: it asks the ranks for one step after the other. Pure: messages and ticks in, actions out.

A trial gathers the agents, starts the ranks, runs one step after the other, and ends in order. When a step goes wrong,
the conductor waits a moment for further reports, records its suspicions (``trouble``), has the generation killed, and
starts the next one without the suspects if at least two ranks are left.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from seatrial.conductor.base import END_S, BaseConductor
from seatrial.conductor.check_events import CheckEvents, require_few_values
from seatrial.conductor.config import State, TrialConfig
from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.origin import MAX_STACK_CHARS, brief, cause_of, last_lines
from seatrial.conductor.rank_status import RankStatus, Suspicion, dead, entries_of
from seatrial.conductor.steps import StepPlan, next_generation, ranges, without_network
from seatrial.protocol.commands import AgentReport, DumpStack, NodeStepCommand, Quit, StartWorkers, StepCommand
from seatrial.protocol.events import (
    DoneEvent,
    EndEvent,
    ErrorEvent,
    Event,
    ExitEvent,
    GenerationEvent,
    InterfaceEvent,
    NodeDoneEvent,
    NoteEvent,
    RankEvent,
    StackEvent,
    StepEndEvent,
    StepEvent,
    TroubleEvent,
)
from seatrial.protocol.fields import plain

_MAX_REPEATS = 11
"""Ranks that one check may have measured again: three to compare with, and those of a host."""
_MOST_LATE = 8
"""Late nodes that are named."""
_MAX_NODE_BYTES = 1_000
"""Values that one node may share with the stages that follow: all nodes receive them, also 4,096 from each other."""
_DEEPEST_SHARE = 8
_MAX_SHARED_BYTES = 1000
"""Values that the first rank may share with later steps in one: the address of a store, a key."""

_WATCHED = (State.AGENTS, State.START, State.STEP)
_UNFINISHED = (State.GATHER, *_WATCHED)
_UNHEARD = "it was stopped or asleep, or its disk did not answer; start it again where it goes on"
_FALSE_SHARE = "find out what runs there, or repeat the trial without that node"
_ABSENT_ACTION = (
    "look at the output of its agent, and at what may keep it from the node that conducts: a firewall, or in Kubernetes"
    " a NetworkPolicy (--allow-egress)"
)


class TrialConductor(BaseConductor):
    """One trial. Every public method takes the time (monotonic seconds) and returns the actions."""

    _config: TrialConfig

    def __init__(self, config: TrialConfig, now: float) -> None:
        super().__init__(config, min(config.join_timeout_s, config.deadline_s), now)
        self._deadline = now + config.deadline_s
        self._ranks: tuple[int, ...] = tuple(self._nodes)
        """Ranks of this generation."""
        self._hang_detector = HangDetector({}, now, now)
        """Watches AGENTS, START and STEP; all other states end at ``_until``."""
        self._plan: list[StepPlan] = list(config.steps)
        self._at = -1
        """Index of the current step in ``_plan``."""
        self._number = -1
        """Number of the current step in the run."""
        self._started_at = now
        """Time at which the current step began."""
        self._shared: dict[str, Any] = {}
        """Values that ranks of this generation shared with later steps."""
        self._rank_events: list[dict[str, Any]] = []
        self._check_events = CheckEvents()
        self._ranks_at = Counter[str]()
        """Place -> its ranks in this generation."""
        self._ended = set[str]()
        """The ranks that have ended the current step: one that spoke again could choose whom the check asks next."""
        self._interface = ""
        """Network interface that a check of agents chose for the ranks."""
        self._signaled: set[int] = set()
        """Nodes whose agents received a signal."""
        self._quitting: set[int] = set()
        """Ranks that have not ended yet, in QUIT."""

    def _statuses(self) -> Mapping[int, RankStatus]:
        return self._hang_detector.statuses

    def _shift(self, missed_s: float) -> None:
        self._hang_detector.shift(missed_s)
        self._deadline += missed_s
        self._started_at += missed_s

    # One generation after the other, one step after the other

    def _begin(self, now: float) -> None:
        self._generation += 1
        self._shared, self._at = {}, -1
        self._ranks_at = Counter(self._places[self._nodes[rank]] for rank in self._ranks)
        rows = [[rank, self._nodes[rank], self._local_rank(rank)] for rank in self._ranks]
        places = {str(node): place for node, place in sorted(self._places.items())}
        self._begun = GenerationEvent(kind="generation", gen=self._generation, ranks=rows, places_of_nodes=places)
        self._record(self._begun)
        if self._plan and self._plan[0].scope == "agents":
            self._next_step(now)
        else:
            self._start_ranks(now)

    def _start_ranks(self, now: float) -> None:
        config = self._config
        self.state = State.START
        self._shared = {}
        self._note_started(self._ranks)
        hosts = {rank: self._places[self._nodes[rank]] for rank in self._ranks}
        self._hang_detector = HangDetector(hosts, min(now + config.start_timeout_s, self._deadline), now)
        by_node, all_ranks = self._by_node(self._ranks), ranges(self._ranks)
        for node in self._heard_at:
            command = StartWorkers(
                kind="start_workers",
                run=config.run,
                gen=self._generation,
                ranks=all_ranks,
                places=[[rank, self._local_rank(rank)] for rank in by_node.get(node, ())],
                env=dict(config.env),
                device=config.device,
                backend=config.backend,
                interface=self._interface,
            )
            self._send(node, command)

    def _next_step(self, now: float) -> None:
        """Start the next step, or the ranks after the last step of agents; have the ranks quit after the last one."""
        if self.state is State.AGENTS and not any(step.scope == "agents" for step in self._plan[self._at + 1 :]):
            if self._at + 1 < len(self._plan):
                self._start_ranks(now)
            else:
                self._stop(now)
            return
        self._at += 1
        if self._at >= len(self._plan):
            self.state = State.QUIT
            self._until = now + END_S
            self._quitting = set(self._ranks)
            self._send_all(Quit(kind="quit"))
            return
        step = self._plan[self._at]
        if self._at == 0 or self._plan[self._at - 1].check != step.check:
            self._check_events.begin(self._begun)
            self._shared = self._shared if step.scope != "agents" else {}
        self._number += 1
        self._ended = set()
        self._started_at = now
        if step.scope == "agents":
            self._ask_agents(step, now)
            return
        self.state = State.STEP
        asked = step.ranks if step.ranks is not None else self._ranks[:1] if step.shares else self._ranks
        until = min(now + step.timeout_s, self._deadline)
        timeout_s = round(max(until - now, 0.0), 3)
        together, cut_short = step.scope != "alone", until < now + step.timeout_s
        self._hang_detector.begin(asked, until, now, together=together, cut_short=cut_short)
        event = self._step_event(step, timeout_s, list(asked))
        self._record(event)
        self._check_events.add_own(event)
        given = self._given(step)
        for node, ranks in self._by_node(asked).items():
            command = StepCommand(
                kind="step",
                gen=self._generation,
                step=self._number,
                check=step.check,
                stage=step.stage,
                timeout_s=timeout_s,
                params=step.params,
                given=given,
                ranks=ranks,
            )
            self._send(node, command)

    def _ask_agents(self, step: StepPlan, now: float) -> None:
        self.state = State.AGENTS
        until = min(now + step.timeout_s, self._deadline)
        self._hang_detector.begin((), until, now, together=False)
        late = self._awaited if step.excuses else set()
        self._awaited = self._heard_at.keys() - self._gone - late
        timeout_s = round(max(until - now, 0.0), 3)
        self._record({**self._step_event(step, timeout_s, []), "nodes": sorted(self._awaited)})
        command = NodeStepCommand(
            kind="node_step",
            gen=self._generation,
            step=self._number,
            check=step.check,
            stage=step.stage,
            timeout_s=timeout_s,
            params=step.params,
            given={**self._given(step), "places_of_nodes": self._begun["places_of_nodes"]},
            env=dict(self._config.env),
            backend=self._config.backend,
            device=self._config.device,
            watches=step.watches,
        )
        self._send_all(command)

    def _step_event(self, step: StepPlan, timeout_s: float, ranks: list[int]) -> StepEvent:
        event = StepEvent(
            kind="step",
            gen=self._generation,
            step=self._number,
            check=step.check,
            stage=step.stage,
            timeout_s=timeout_s,
            ranks=ranks,
        )
        if step.round is not None:
            event["round"] = step.round
        return event

    def _given(self, step: StepPlan) -> dict[str, Any]:
        """Return what a step receives: the values shared so far, and the round."""
        return self._shared if step.round is None else {**self._shared, "round": step.round}

    def _agents_finished(self, outcome: Literal["done", "deadline"], now: float) -> None:
        """Go on after a step of agents: without those that need what failed.

        After one that was late, of its check only a stage that excuses follows, and no further round.
        """
        step = self._plan[self._at]
        self._end_step(outcome, now)
        if outcome == "deadline":
            is_any_in_time = bool(self._heard_at.keys() - self._gone - self._awaited)
            self._plan[self._at + 1 :] = [
                replace(other, last_stage=other.last_stage and other.check != step.check)
                for other in self._plan[self._at + 1 :]
                if other.check != step.check or (other.excuses and is_any_in_time)
            ]
        elif step.last_stage:
            self._plan_more()
        to_come = self._plan[self._at + 1 : self._at + 2]
        if to_come and to_come[0].check == step.check:
            self._next_step(now)
            return
        if chosen := self._config.interface(step.check, self._check_events.all()):
            self._interface = chosen
            event = InterfaceEvent(kind="interface", gen=self._generation, check=step.check, name=chosen)
            self._record(event)
            self._check_events.add_own(event)
        if not step.watches and self._config.fails(step.check, self._check_events.all()):
            kept, left_out = without_network(self._plan, self._at + 1)
            self._plan = list(kept)
            if left_out:
                names, were = ", ".join(left_out), "was" if len(left_out) == 1 else "were"
                text = f"{names} {were} not started, as {step.check} failed"
                self._record(NoteEvent(kind="note", severity="info", text=text))
        self._next_step(now)

    def _rank_finished(self, rank: int, now: float) -> None:
        self._hang_detector.finished(rank, now)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Go on after a step, or the start of the ranks, that all have finished, unless something is wrong."""
        if not self._hang_detector.complete or not self._hang_detector.calm:
            return
        if self.state is State.AGENTS:
            if not self._awaited:
                self._agents_finished("done", now)
            return
        try:
            if self.state is State.STEP:
                self._end_step("done", now)
                self._plan_more()
        finally:  # events that no check can read must not hold up the trial
            self._next_step(now)

    def _plan_more(self) -> None:
        """Insert the next round of the check, or a repeat by each rank that it doubts, one alone at a time."""
        step = self._plan[self._at]
        if step.last_stage and step.stage != "repeat" and self._generation == 0:
            events = [*self._rank_events, *self._check_events.all()]
            next_round = self._config.next_round(step.check, events)
            if next_round is not None and next_round[1] == step.round:
                next_round = None  # the round brought nothing, so it would be asked for again and again
            suspects = self._config.suspects(step.check, events)[:_MAX_REPEATS]
            more = [step.next_round(*next_round)] if next_round else [step.repeated_by(rank) for rank in suspects]
            self._plan[self._at + 1 : self._at + 1] = more

    def _end_step(self, outcome: Literal["done", "trouble", "deadline", "interrupted"], now: float) -> None:
        if self.state in (State.AGENTS, State.STEP):
            seconds = round(now - self._started_at, 3)
            self._record(
                StepEndEvent(kind="step_end", gen=self._generation, step=self._number, outcome=outcome, seconds=seconds)
            )

    # Messages

    def _receive(self, node: int, received: AgentReport | Event, now: float) -> None:
        if received["kind"] == "signal":
            self._receive_signal(node, now)
        if received.get("gen") != self._generation:
            return
        runs = self.state in (State.START, State.STEP)
        match received["kind"]:
            case "rank" if self.state is State.START:
                self._receive_rank(received, now)
            case "measurements" | "facts" if self._is_of_now(cast("dict[str, Any]", received)):
                self._check_events.add_entries(cast("dict[str, Any]", received), self._ranks_at[self._places[node]])
            case "node_done" if self.state is State.AGENTS and received["step"] == self._number:
                self._receive_node_done(node, received, now)
            case "done" if self.state is State.STEP and received["step"] == self._number:
                self._receive_done(received, now)
            case "error" if runs:
                self._receive_error(received, now)
            case "stack":
                self._receive_stack(received)
            case "exit" if self.state is State.QUIT:
                self._quitting.discard(self._rank_of(received["rank"]))
                if not self._quitting:
                    self._stop(now)
            case "exit" if runs and not received["ours"]:
                self._receive_death(received, now)
            case _:
                pass

    def _receive_rank(self, event: RankEvent, now: float) -> None:
        rank = self._rank_of(event["rank"])
        require_few_values(event)
        if self._hang_detector.is_awaited(rank):
            self._rank_events.append(cast("dict[str, Any]", event))
        self._rank_finished(rank, now)

    def _is_of_now(self, event: dict[str, Any]) -> bool:
        """Return whether a rank speaks of the current step before its end. What an agent watches goes on after it."""
        src = str(event["src"])
        return src.startswith("node") or (event["step"] == self._number and src not in self._ended)

    def _receive_node_done(self, node: int, event: NodeDoneEvent, now: float) -> None:
        share = event["share"]
        # The others get it within a command, which must not be nested deeper than any.
        if not (isinstance(share, list) and plain(share, _DEEPEST_SHARE) and len(json.dumps(share)) <= _MAX_NODE_BYTES):
            raise ValueError(f"node {node} shares no plain list, or more than {_MAX_NODE_BYTES} bytes")
        if share or str(node) not in self._shared:  # one that shares nothing stays among them, as nobody reached it
            self._shared[str(node)] = share
        self._awaited.discard(node)
        self._go_on(now)

    def _receive_done(self, event: DoneEvent, now: float) -> None:
        self._ended.add(event["src"])
        rank, share, step = self._rank_of(event["rank"]), event["share"], self._plan[self._at]
        # Only where the first rank works alone: in all other steps a rank could write what another one should.
        if step.shares and self._hang_detector.is_awaited(rank):
            if not (isinstance(share, dict) and len(json.dumps(share)) <= _MAX_SHARED_BYTES and step.shares(share)):
                # The others would fail for it, and accuse a network over which it never came.
                where = f"rank {rank} on node {self._config.host_name(self._nodes[rank])}"
                text = f"{where} shares other values than {step.check}/{step.stage} does, so the others cannot go on"
                self._record(NoteEvent(kind="note", severity="error", text=f"{text}: {_FALSE_SHARE}"))
                self._hang_detector.end_soon(now)
                return
            self._shared |= share
        elif share and self._hang_detector.is_awaited(rank):
            text = f"rank {rank} shares values with later steps that no check of ours shares; they are not used"
            self._record(NoteEvent(kind="note", severity="error", text=text))
        self._rank_finished(rank, now)

    def _receive_error(self, event: ErrorEvent, now: float) -> None:
        phase = brief(event["phase"])
        suspicion = Suspicion(how="error", rank=self._rank_of(event["rank"]), phase=phase, detail=cause_of(event))
        self._hang_detector.suspect(suspicion, now)

    def _receive_stack(self, event: StackEvent) -> None:
        rank, text = self._rank_of(event["rank"]), brief(event["text"], MAX_STACK_CHARS)
        self._hang_detector.answer(rank, event.get("number"), text)

    def _receive_death(self, event: ExitEvent, now: float) -> None:
        rank, phase = self._rank_of(event["rank"]), brief(event["phase"])
        hosts, is_oom, said = len(self._ranks_at), "oom_limit_bytes" in event, last_lines(event)
        lines = () if self._config.device == "cpu" else said
        suspicion = dead(rank, phase, event["code"], is_oom=is_oom, num_hosts=hosts, device_lines=lines)
        self._hang_detector.suspect(suspicion, now)

    def _rank_of(self, rank: int) -> int:
        """Return the rank that an event is about. Raises KeyError for one that is not in this generation."""
        if not isinstance(rank, int) or rank not in self._hang_detector.statuses:
            raise KeyError(f"rank {rank!r} is not in generation {self._generation}")
        return rank

    def _take_still(self, still: Mapping[str, list[float]], now: float) -> None:
        """Nothing: the phases of a trial's ranks say more."""

    def _agent_ended(self, node: int, end: EndEvent, now: float) -> None:
        was_gone = node in self._gone
        self._gone.add(node)
        # One that counts as lost hears nothing of the next attempt, and so takes us for dead in the middle of it.
        if self.state in _UNFINISHED and not was_gone and node not in self._signaled:
            # It took us for dead, and its note says so; or nobody else knows why.
            text = f"the agent of node {self._config.host_name(node)} ended before the trial was over"
            self._record(NoteEvent(kind="note", severity="error", text=text))
            if self.state is State.GATHER:
                self._stop(now)
            else:
                self._hang_detector.end_soon(now)
        self._after_loss(node, now)

    def _receive_signal(self, node: int, now: float) -> None:
        """End the trial: a signal ends that agent. Where somebody is suspected, the launcher of the job sent it."""
        self._signaled.add(node)
        may_be_stopped = self._hang_detector.may_be_stopped
        if self.state is State.AGENTS:
            may_be_stopped = self._hang_detector.calm
        if self.state in _UNFINISHED and node not in self._gone and may_be_stopped:
            self._interrupt(f"a signal to the agent of node {self._config.host_name(node)}", now)

    # Trouble

    def _watch(self, now: float) -> None:
        if heard := [node for node in self._hang_detector.silent_nodes() if not self._is_silent(node)]:
            self._hang_detector.heard_again(heard, now)
            self._go_on(now)
            if self.state not in _WATCHED:
                return
        outcome = self._hang_detector.poll(self._read_until)
        if outcome is not None:
            self._gone |= self._hang_detector.silent_nodes()
        if outcome is not None and self.state is State.AGENTS:
            self._end_agents(outcome, now)
        elif outcome is not None:
            step = self._number if self.state is State.STEP else -1
            suspects_any = bool(self._hang_detector.suspicions) or outcome == "deadline"
            if suspects_any:
                self._record(self._hang_detector.trouble_payload(self._generation, step))
            self._end_step(outcome, now)
            self._kill(self._hang_detector.stacks_wanted() if suspects_any else (), now)
        else:
            ranks, number = self._hang_detector.stacks_to_request(now), self._hang_detector.request_number
            for node in {self._nodes[rank] for rank in ranks}:
                self._send(node, DumpStack(kind="dump_stack", number=number, ranks=ranks))

    def _end_agents(self, outcome: Literal["trouble", "deadline"], now: float) -> None:
        """End a step of agents: it stops where a node vanished, and goes on without those that are late."""
        if outcome == "deadline":
            self._note_late_nodes(sorted(self._awaited), now)
            self._agents_finished("deadline", now)
            return
        self._record_vanished(self._hang_detector.suspicions)
        self._end_step("trouble", now)
        self._stop(now)

    def _node_silent(self, node: int, silent_s: float, now: float) -> None:
        if node in self._signaled:
            self._lose(node, "", now)
        elif self.state in _WATCHED:
            if self._is_excused(node, now):
                self._gone.add(node)
            else:  # it counts as gone once the grace is over
                self._hang_detector.suspect(self._suspect_silent(node, silent_s), now)

    def _suspect_silent(self, node: int, silent_s: float) -> Suspicion:
        return Suspicion(how="silent", node=node, phase=self._phase_of(node), waited_s=silent_s)

    def _is_excused(self, node: int, now: float) -> bool:
        """Return whether a node is gone because this process was stopped or asleep; say so, and end the step."""
        unheard_s = self._unheard_s(node, now)
        if unheard_s:
            name = self._config.host_name(node)
            text = f"node {name} was lost after this controller had sent nothing to the agents for {unheard_s:.0f} s"
            self._record(NoteEvent(kind="note", severity="error", text=f"{text}: {_UNHEARD}"))
            if self.state in _WATCHED:
                self._hang_detector.end_soon(now)
        return bool(unheard_s)

    def _node_lost(self, node: int, detail: str, now: float) -> None:
        if node in self._signaled:  # a launcher kills what does not end soon after its signal
            return
        suspicion = Suspicion(how="lost", node=node, phase=self._phase_of(node), detail=detail)
        if self.state in _WATCHED:
            was_silent = node in self._hang_detector.silent_nodes() and self._is_silent(node)
            if not was_silent and not self._is_excused(node, now):
                self._hang_detector.suspect(suspicion, now)
        elif self.state is State.KILL:
            if not self._is_excused(node, now):
                self._record_vanished([suspicion])
        elif self.state is State.GATHER:
            text = f"node {self._config.host_name(node)} was lost before the ranks were started: {detail}"
            self._record(NoteEvent(kind="note", severity="error", text=text))
            self._stop(now)

    def _after_loss(self, node: int, now: float) -> None:
        if self.state is State.QUIT:
            self._quitting -= {rank for rank in self._quitting if self._nodes[rank] == node}
            if not self._quitting:
                self._stop(now)
        else:
            super()._after_loss(node, now)

    def _generation_killed(self, now: float) -> None:
        """Go on without the suspects if at least two ranks and a step are left."""
        guilty = self._hang_detector.guilty()
        ended = self._gone | self._signaled
        left = tuple(rank for rank in self._ranks if rank not in guilty and self._nodes[rank] not in ended)
        worthwhile = (
            not self._interrupted_by
            and 2 <= len(left) < len(self._ranks)
            and self._generation + 1 < self._config.most_generations
            and now < self._deadline
        )
        if not worthwhile:
            self._stop(now)
            return
        self._plan = list(next_generation(self._plan, max(self._at, 0)))
        self._ranks = left
        self._begin(now)

    def _end_early(self, now: float) -> None:
        if self.state in (State.GATHER, State.AGENTS, State.QUIT):
            if self.state is State.AGENTS:
                self._record_vanished(self._hang_detector.suspicions)
            self._end_step("interrupted", now)
            self._stop(now)
        elif self.state is not State.KILL:
            self._end_step("interrupted", now)
            self._kill((), now)

    def _absent(self, nodes: list[int], now: float) -> None:
        for node in nodes:
            name = self._config.host_name(node)
            text = f"node {name} did not join within {self._join_timeout_s:.0f} s; {_ABSENT_ACTION}"
            self._record(NoteEvent(kind="note", severity="error", text=text))
        self._stop(now)

    def _kill_overdue(self, nodes: list[int], now: float) -> None:
        self._record_vanished(
            [
                self._suspect_silent(node, self._read_until - self._heard_at[node])
                for node in nodes
                if node not in self._signaled and not self._is_excused(node, now)
            ]
        )

    def _state_overdue(self, now: float) -> None:
        if self.state is State.QUIT:
            late = ", ".join(str(rank) for rank in sorted(self._quitting))
            ranks = f"rank {late} did not exit in time and was"
            if len(self._quitting) > 1:
                ranks = f"ranks {late} did not exit in time and were"
            self._record(NoteEvent(kind="note", severity="warn", text=f"{ranks} killed"))
            self._stop(now)

    def _note_late_nodes(self, nodes: list[int], now: float) -> None:
        """Name the nodes that have not finished a step of agents: no other part of the report knows them."""
        step = self._plan[self._at]
        names = ", ".join(self._config.host_name(node) for node in nodes[:_MOST_LATE])
        more = f" and {len(nodes) - _MOST_LATE} more" if len(nodes) > _MOST_LATE else ""
        text = (
            f"{'node' if len(nodes) == 1 else 'nodes'} {names}{more} did not finish {step.check}"
            f"{'/' + step.stage if step.stage else ''} within {now - self._started_at:.0f} s; look at what the agent"
            " does there: a tool of a driver or a file system that does not answer"
        )
        self._record(NoteEvent(kind="note", severity="error", text=text))

    def _record_vanished(self, suspicions: list[Suspicion]) -> None:
        """Record nodes that vanished while the generation was killed: its ranks' errors may come from that."""
        if not suspicions:
            return
        self._record(
            TroubleEvent(
                kind="trouble",
                gen=self._generation,
                step=self._number if self._at >= 0 else -1,
                seen=entries_of(suspicions),
                waiting=[],
            )
        )

    # Ranks and nodes

    def _local_rank(self, rank: int) -> int:
        return rank % self._config.nproc_per_node

    def _phase_of(self, node: int) -> str:
        """Return the phase of a node's first rank in this generation."""
        statuses = self._hang_detector.statuses
        phases = (statuses[rank].phase for rank, at in self._nodes.items() if at == node and rank in statuses)
        return next(phases, "")

    def _by_node(self, ranks: Collection[int]) -> dict[int, list[int]]:
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self._nodes[rank], []).append(rank)
        return by_node
