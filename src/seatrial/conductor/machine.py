"""The conductor as a pure state machine: messages and ticks in, actions out. No socket, no clock, no file.

A trial goes: gather the agents, start the ranks, then one step after the other, then an orderly end. When something
goes wrong in a step the machine waits a moment for what others have to say, tells what it saw (``trouble``), has the
generation killed, and starts the next one without the suspects where that still tells something.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from seatrial.conductor.base import END_S, NODE_SILENT_S, BaseConductor, take_status
from seatrial.conductor.hearsay import brief, refuse_hearsay
from seatrial.conductor.records import Actions, Config, State
from seatrial.conductor.steps import StepPlan, next_generation, ranges
from seatrial.conductor.vigil import Vigil
from seatrial.conductor.watch import Seen

__all__ = ["Machine"]

_MOST_REPEATS = 9
_MOST_STACK = 1 << 16
_MOST_GIVEN_BYTES = 1 << 18


class Machine(BaseConductor):
    """One trial. Every public method takes the time (monotonic seconds) and returns what to do."""

    def __init__(self, config: Config, now: float) -> None:
        self._join_s = min(config.join_timeout_s, config.deadline_s)
        super().__init__(now + self._join_s, now)
        self._config = config
        self.state = State.GATHER
        """START and STEP are watched by the vigil, all others end at ``_until``."""
        self._deadline = now + config.deadline_s
        self._places = {
            rank: divmod(rank, config.nproc_per_node) for rank in range(config.nodes * config.nproc_per_node)
        }
        """(node, local rank) of each rank."""
        self._nodes = {rank: node for rank, (node, _) in self._places.items()}
        self._ranks: tuple[int, ...] = tuple(self._places)
        self._vigil = Vigil((), now, now)
        self._plan: list[StepPlan] = list(config.steps)
        self._at = -1
        self._number = -1
        self._started_at = now
        self._given: dict[str, Any] = {}
        self._known: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []
        self._interrupted = False

    # What comes in

    def joined(self, node: int, now: float) -> Actions:
        """An agent with the right token came."""
        self._hear(node, now)
        self._send(node, {"kind": "welcome", "run": self._config.run})
        if self.state is State.STOP:
            self._send(node, {"kind": "stop"})
        if self.state is State.GATHER and len(self._heard_at) == self._config.nodes:
            self._start(now)
        return self._take()

    def message(self, node: int, message: dict[str, Any], now: float) -> Actions:
        """A message or an event of a node that joined.

        Raises KeyError, TypeError, ValueError or AttributeError for one that is malformed, and then ignores it;
        HearsayError for one that speaks for somebody else, which must not be kept either.
        """
        self._hear(node, now)
        refuse_hearsay(node, message, self._nodes, self._config.run)
        kind = message.get("kind")
        if kind == "status":
            take_status(self._vigil.pulses, message["ranks"], now)
        elif kind == "killed" and self.state is State.KILL and message["gen"] == self._generation:
            self._awaited.discard(node)
            self._after_kill(now)
        elif kind == "end" and message.get("src") == f"node{node}":
            self._gone.add(node)
            if self.state in (State.GATHER, State.START, State.STEP):
                if message.get("told"):
                    self._interrupt(f"a signal to the agent of node {node}", now)
                elif self.state is State.GATHER:  # it took us for dead, and its note says so
                    self._stop(now)
                else:
                    self._end_step("trouble", now)
                    self._kill((), now)
            self._after_loss(node, now)
        elif message.get("gen") == self._generation:
            self._event_of_rank(kind, message, now)
        return self._take()

    def lost(self, node: int, detail: str, now: float) -> Actions:
        """The connection of a node is gone, or its agent is."""
        self._pass_time(now)
        if node not in self._gone:
            self._gone.add(node)
            seen = Seen(how="lost", node=node, phase=self._phase_of(node), detail=detail)
            if self.state in (State.START, State.STEP):
                self._vigil.suspect(seen, now)
            elif self.state is State.KILL:
                self._tell_vanished([seen])
            elif self.state is State.GATHER:
                self._tell(
                    "note", severity="error", text=f"node {node} was lost before the ranks were started: {detail}"
                )
                self._stop(now)
            self._after_loss(node, now)
        return self._take()

    def interrupt(self, by: str, now: float) -> Actions:
        """The user or the scheduler wants the end: keep what was measured."""
        self._pass_time(now)
        self._interrupt(by, now)
        return self._take()

    def tick(self, now: float) -> Actions:
        """Time has passed."""
        self._pass_time(now)
        self._beat(now)
        if self.state in (State.START, State.STEP):
            self._watch(now)
        elif now >= self._until:
            self._overdue(now)
        return self._take()

    def _shift(self, missed_s: float) -> None:
        self._vigil.shift(missed_s)

    # One generation after the other, one step after the other

    def _start(self, now: float) -> None:
        self.state = State.START
        self._generation += 1
        self._vigil = Vigil(self._ranks, min(now + self._config.start_timeout_s, self._deadline), now)
        self._given, self._at = {}, -1
        self._tell("generation", gen=self._generation, ranks=[[rank, *self._places[rank]] for rank in self._ranks])
        command = {"kind": "start", "run": self._config.run, "gen": self._generation, "ranks": ranges(self._ranks)}
        by_node = self._by_node(self._ranks)
        for node in self._heard_at:
            places = [[rank, self._places[rank][1]] for rank in by_node.get(node, ())]
            self._send(node, {**command, "places": places, **self._config.worker})

    def _next(self, now: float) -> None:
        """Ask for the next step, or end in order."""
        self._at += 1
        if self._at >= len(self._plan):
            self.state = State.QUIT
            self._until = now + END_S
            self._awaited = set(self._ranks)  # who have not ended yet
            self._tell_nodes({"kind": "quit"})
            return
        step = self._plan[self._at]
        if self._at == 0 or self._plan[self._at - 1].check != step.check:
            self._kept = []
        self.state = State.STEP
        self._number += 1
        self._started_at = now
        asked = step.ranks if step.ranks is not None else self._ranks[:1] if step.first_only else self._ranks
        until = min(now + step.timeout_s, self._deadline)
        self._vigil.begin(asked, until, now, together=step.scope != "alone")
        what = {"gen": self._generation, "step": self._number, "check": step.check, "stage": step.stage}
        what["timeout_s"] = round(max(until - now, 0.0), 3)
        self._tell("step", **what, ranks=list(asked))
        given = self._given if step.round is None else {**self._given, "round": step.round}
        command = {"kind": "step", **what, "params": step.params, "given": given}
        for node, ranks in self._by_node(asked).items():
            self._send(node, {**command, "ranks": ranks})

    def _event_of_rank(self, kind: Any, event: dict[str, Any], now: float) -> None:
        if kind == "rank" and self.state is State.START:
            rank = self._rank_of(event)
            self._known.append(event)
            self._finished(rank, now)
        elif kind in ("figures", "facts"):
            self._kept.append(event)
        elif kind == "done" and self.state is State.STEP and event["step"] == self._number:
            rank, given = self._rank_of(event), {**self._given, **event["share"]}
            if len(json.dumps(given)) > _MOST_GIVEN_BYTES:
                raise ValueError(f"rank {rank} shares more than a step can be told")
            self._given = given
            self._finished(rank, now)
        elif kind == "error" and self.state in (State.START, State.STEP):
            phase, cause = brief(event["phase"]), brief(event["cause"])
            seen = Seen(how="error", rank=self._rank_of(event), phase=phase, detail=cause)
            self._vigil.suspect(seen, now)
        elif kind == "stack":
            self._vigil.stacks[self._rank_of(event)] = brief(event["text"], _MOST_STACK)
        elif kind == "exit" and self.state is State.QUIT:
            self._awaited.discard(self._rank_of(event))
            if not self._awaited:
                self._stop(now)
        elif kind == "exit" and self.state in (State.START, State.STEP) and not event["ours"]:
            rank, phase = self._rank_of(event), brief(event["phase"])
            seen = Seen(how="dead", rank=rank, phase=phase, detail=f"exit code {brief(event['code'])}")
            self._vigil.suspect(seen, now)

    def _rank_of(self, event: dict[str, Any]) -> int:
        """The rank that an event speaks of. Raises KeyError for one that is not in this generation."""
        rank = event["rank"]
        if not isinstance(rank, int) or rank not in self._vigil.pulses:
            raise KeyError(f"rank {rank!r} is not in generation {self._generation}")
        return rank

    def _finished(self, rank: int, now: float) -> None:
        self._vigil.finished(rank)
        if not self._vigil.complete or not self._vigil.calm:
            return
        try:
            if self.state is State.STEP:
                self._end_step("done", now)
                self._ask_again()
        finally:  # events that no check can read must not hold up the trial
            self._next(now)

    def _ask_again(self) -> None:
        """What a check wants to see next, or the ranks that it doubts once more, one alone at a time."""
        step = self._plan[self._at]
        if step.last_stage and step.stage != "repeat" and self._generation == 0:
            events = [*self._known, *self._kept]
            asked = self._config.next_round(step.check, events)
            doubted = self._config.suspects(step.check, events)[:_MOST_REPEATS]
            more = [step.next_round(*asked)] if asked else [step.repeated_by(rank) for rank in doubted]
            self._plan[self._at + 1 : self._at + 1] = more

    # Trouble

    def _watch(self, now: float) -> None:
        for node, heard_at in self._heard_at.items():
            if node not in self._gone and now - heard_at > NODE_SILENT_S:
                self._gone.add(node)
                phase = self._phase_of(node)
                self._vigil.suspect(Seen(how="silent", node=node, phase=phase, waited_s=now - heard_at), now)
        outcome = self._vigil.look(now)
        if outcome is not None:
            number = self._number if self.state is State.STEP else -1
            self._tell("trouble", gen=self._generation, **self._vigil.told(number))
            self._end_step(outcome, now)
            self._kill(self._vigil.stacks_wanted(), now)
            return
        ranks = self._vigil.peek(now)
        for node in {self._places[rank][0] for rank in ranks}:
            self._send(node, {"kind": "peek", "ranks": ranks})

    def _end_step(self, outcome: str, now: float) -> None:
        if self.state is State.STEP:
            seconds = round(now - self._started_at, 3)
            self._tell("step_end", gen=self._generation, step=self._number, outcome=outcome, seconds=seconds)

    def _kill(self, stacks: Collection[int], now: float) -> None:
        self.state = State.KILL
        self._tell_kill(stacks, now)
        self._after_kill(now)

    def _after_kill(self, now: float) -> None:
        """Go on without the suspects where at least two ranks are left and something was not asked yet."""
        if self._awaited:
            return
        guilty = self._vigil.guilty()
        left = tuple(rank for rank in self._ranks if rank not in guilty and self._places[rank][0] not in self._gone)
        worthwhile = (
            not self._interrupted
            and 2 <= len(left) < len(self._ranks)
            and self._generation + 1 < self._config.most_generations
            and now < self._deadline
        )
        if not worthwhile:
            self._stop(now)
            return
        self._plan = list(next_generation(self._plan, max(self._at, 0)))
        self._ranks = left
        self._start(now)

    def _interrupt(self, by: str, now: float) -> None:
        if self._interrupted or self.state in (State.STOP, State.OVER):
            return
        self._interrupted = True
        self._tell("interrupted", by=by)
        if self.state in (State.GATHER, State.QUIT):
            self._stop(now)
        elif self.state is not State.KILL:
            self._end_step("interrupted", now)
            self._kill((), now)

    def _overdue(self, now: float) -> None:
        if self.state is State.GATHER:
            for node in sorted(set(range(self._config.nodes)) - set(self._heard_at)):
                text = f"node {node} did not join within {self._join_s:.0f} s"
                self._tell("note", severity="error", text=text)
            self._stop(now)
        elif self.state is State.KILL:
            self._tell_vanished(
                [
                    Seen(how="silent", node=node, phase=self._phase_of(node), waited_s=now - self._heard_at[node])
                    for node in sorted(self._awaited)
                ]
            )
            self._gone |= self._awaited
            self._awaited = set()
            self._after_kill(now)
        elif self.state is State.QUIT:
            late = ", ".join(str(rank) for rank in sorted(self._awaited))
            self._tell("note", severity="warn", text=f"ranks {late} did not end by themselves and were ended")
            self._stop(now)
        elif self.state is State.STOP:
            self._finish()

    def _stop(self, now: float) -> None:
        self.state = State.STOP
        self._until = now + END_S
        self._tell_nodes({"kind": "stop"})
        if self._all_gone():
            self._finish()

    def _after_loss(self, node: int, now: float) -> None:
        if self.state is State.KILL:
            self._awaited.discard(node)
            self._after_kill(now)
        elif self.state is State.QUIT:
            self._awaited -= {rank for rank in self._awaited if self._places[rank][0] == node}
            if not self._awaited:
                self._stop(now)
        elif self.state is State.STOP and self._all_gone():
            self._finish()

    def _finish(self) -> None:
        self.state = State.OVER
        self._tell_end()

    # Words

    def _phase_of(self, node: int) -> str:
        ranks = [rank for rank, (at, _) in self._places.items() if at == node and rank in self._vigil.pulses]
        return self._vigil.pulses[ranks[0]].phase if ranks else ""

    def _by_node(self, ranks: Collection[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self._places[rank][0], []).append(rank)
        return found

    def _tell_vanished(self, seen: list[Seen]) -> None:
        """Nodes that vanished while the generation was ended: what its ranks complained of may come from that."""
        number = self._number if self._at >= 0 else -1
        told = [entry.to_json() for entry in seen]
        self._tell("trouble", gen=self._generation, step=number, seen=told, waiting=[])
