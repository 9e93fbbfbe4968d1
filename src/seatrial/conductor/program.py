"""The conductor of a program: every rank executes one argv, and all of them start again when one dies. Pure.

It goes: gather the agents, have node 0 find a port, start the ranks, watch them until all have ended. When one fails,
the others get SIGTERM, after a grace SIGKILL, and the next generation starts at another port while restarts are left.
Like ``machine.Machine`` it takes messages and times and returns what to do; ``serve.Server`` drives both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.conductor import watch
from seatrial.conductor.base import END_S, NODE_SILENT_S, BaseConductor, take_status
from seatrial.conductor.hearsay import refuse_hearsay
from seatrial.conductor.program_failures import Exit, Failure, complaint, first_failure, only_witnesses
from seatrial.conductor.program_records import ProgramConfig, ProgramState
from seatrial.conductor.records import Actions
from seatrial.conductor.watch import Pulse, Seen

__all__ = ["Program"]

_ANSWER_S = 10.0
_HEAR_ALL_S = 1.0
"""The first complaint is seldom the cause: so long others are heard before somebody is named."""
_SETTLE_S = 60.0
"""From the first rank that told its result to the end of the last one."""


class Program(BaseConductor):
    """One program. Every public method takes the time (monotonic seconds) and returns what to do."""

    def __init__(self, config: ProgramConfig, now: float) -> None:
        super().__init__(now + config.join_timeout_s, now)
        self._config = config
        self.state = ProgramState.GATHER
        """In RUN ``_until`` is the deadline of starting, then of ending."""
        self._nodes = {rank: rank // config.nproc_per_node for rank in range(config.world_size)}
        self._hostnames: dict[int, str] = {}
        self._restarts = 0
        self._interrupted_by = ""
        self._failure: Failure | None = None
        self._begin_generation(now)

    def _begin_generation(self, now: float) -> None:
        self._pulses = {rank: Pulse(moved_at=now) for rank in range(self._config.world_size)}
        self._ready: set[int] = set()
        self._results: dict[int, int] = {}
        """Rank -> the exit code that it announced together with its result."""
        self._errors: dict[int, tuple[str, str]] = {}
        """Rank -> cause and message of what went wrong in it."""
        self._exits: dict[int, Exit] = {}
        self._failed_at: float | None = None
        self._held_told: set[int] = set()

    # What comes in

    def joined(self, node: int, now: float) -> Actions:
        """An agent with the right token came."""
        self._hear(node, now)
        self._send(node, {"kind": "welcome", "run": self._config.run})
        if self.state in (ProgramState.STOP, ProgramState.OVER):
            self._send(node, {"kind": "stop"})
        if self.state is ProgramState.GATHER and len(self._heard_at) == self._config.nodes:
            self._ask_port(now)
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
            take_status(self._pulses, message["ranks"], now)
        elif kind == "node":
            self._hostnames[node] = str(message["hostname"])
        elif kind == "port" and self.state is ProgramState.PORT and node == 0 and message["gen"] == self._generation:
            self._start(str(message["address"]), int(message["port"]), now)
        elif kind == "killed" and self.state is ProgramState.KILL and message["gen"] == self._generation:
            self._awaited.discard(node)
            self._after_kill(now)
        elif kind == "signal":
            self._interrupt(f"signal {int(message['number'])} to the agent of node {node}", now)
        elif kind == "end" and message.get("src") == f"node{node}":
            self._lose(node, "its agent ended", now)
        elif message.get("gen") == self._generation and "rank" in message:
            self._event_of_rank(kind, message, now)
        return self._take()

    def lost(self, node: int, detail: str, now: float) -> Actions:
        """The connection of a node is gone, or its agent is."""
        self._pass_time(now)
        self._lose(node, detail, now)
        return self._take()

    def interrupt(self, by: str, now: float) -> Actions:
        """The user or the scheduler wants the end; wanting it twice leaves no grace."""
        self._pass_time(now)
        if self._interrupted_by and self.state is ProgramState.TERMINATE:
            self._kill(now)
        else:
            self._interrupt(by, now)
        return self._take()

    def tick(self, now: float) -> Actions:
        """Time has passed."""
        self._pass_time(now)
        self._beat(now)
        for node, heard_at in self._heard_at.items():
            if now - heard_at > NODE_SILENT_S and self.state not in (ProgramState.STOP, ProgramState.OVER):
                self._lose(node, f"its agent said nothing for {now - heard_at:.0f} s", now)
        if self.state is ProgramState.RUN:
            self._watch(now)
        elif now >= self._until:
            self._overdue(now)
        return self._take()

    def _shift(self, missed_s: float) -> None:
        for pulse in self._pulses.values():
            pulse.shift(missed_s)

    # One generation after the other

    def _ask_port(self, now: float) -> None:
        self.state = ProgramState.PORT
        self._until = now + _ANSWER_S
        self._generation += 1
        self._begin_generation(now)
        self._send(0, {"kind": "port", "gen": self._generation})

    def _start(self, address: str, port: int, now: float) -> None:
        config = self._config
        self.state = ProgramState.RUN
        self._until = now + config.start_timeout_s
        places = [[rank, *divmod(rank, config.nproc_per_node)] for rank in range(config.world_size)]
        self._tell("generation", gen=self._generation, ranks=places)
        program = config.program(address, port)
        for node in self._heard_at:
            own = [[rank, local_rank] for rank, at, local_rank in places if at == node]
            command = {"kind": "start", "run": config.run, "gen": self._generation, "places": own}
            self._send(node, {**command, "env": dict(config.env), "program": {**program, "group_rank": node}})

    def _event_of_rank(self, kind: Any, event: dict[str, Any], now: float) -> None:
        rank = event["rank"]
        if not isinstance(rank, int) or rank not in self._pulses:
            raise KeyError(f"rank {rank!r} is not in generation {self._generation}")
        if kind == "rank":
            self._ready.add(rank)
        elif kind == "result":
            self._results[rank] = int(event["code"])
            self._until = now + _SETTLE_S if len(self._results) == 1 else self._until
        elif kind == "error":
            self._errors[rank] = (str(event["cause"]), str(event["message"]))
            self._failed_at = self._failed_at or now
        elif kind == "exit" and rank not in self._exits:
            ended = Exit(
                rank=rank,
                code=int(event["code"]),
                ours=bool(event["ours"]),
                at=now,
                phase=str(event["phase"]),
                last_lines=tuple(str(line) for line in event["last_lines"]),
            )
            self._exits[rank] = ended
            if ended.code != 0 and not ended.ours and self._results.get(rank) != ended.code:
                self._failed_at = self._failed_at or now
                if said := "" if self._config.watched else complaint(ended):
                    self._errors[rank] = ("fabric", said)
            if len(self._exits) == self._config.world_size:
                self._all_ended(now)

    def _all_ended(self, now: float) -> None:
        if self.state is ProgramState.RUN:
            if self._failed_at is not None:
                self._fail(first_failure(self._exits, self._errors, self._results), now)
            else:
                self._stop(now)
        elif self.state is ProgramState.TERMINATE:
            self._kill(now)

    # Trouble

    def _watch(self, now: float) -> None:
        heard_s = 0.0 if self._failed_at is None else now - self._failed_at
        # Who only complains of others may know of a death, or of a lost node, before we do.
        witnesses = heard_s and only_witnesses(self._exits, self._errors, self._results)
        if heard_s >= _HEAR_ALL_S + (NODE_SILENT_S if witnesses else 0.0):
            self._fail(first_failure(self._exits, self._errors, self._results), now)
            return
        running = {rank: pulse for rank, pulse in self._pulses.items() if rank not in self._exits}
        held = watch.suspects(running, list(running), False, now, together=False)
        held = [seen for seen in held if not _on_disk(running[seen.rank or 0])]
        if self._config.watched and held and len(held) < len(running):
            self._fail(Failure(seen=tuple(held), text=""), now)
            return
        self._tell_held(held)
        if self._config.watched and now >= self._until:
            self._late(running, now)

    def _tell_held(self, held: list[Seen]) -> None:
        for seen in held:
            if seen.rank is not None and seen.rank not in self._held_told and "stopped" in seen.detail:
                self._held_told.add(seen.rank)
                text = f"rank {seen.rank}{self._on(seen.rank)} has been stopped (state T) for {seen.waited_s:.0f} s"
                self._tell("note", severity="warn", text=text)

    def _late(self, running: Mapping[int, Pulse], now: float) -> None:
        if self._results:
            late = sorted(rank for rank in running if rank not in self._results) or sorted(running)
            detail = f"had not ended {_SETTLE_S:.0f} s after others had told their result"
        else:
            late = sorted(rank for rank in running if rank not in self._ready)
            detail = f"was not ready {self._config.start_timeout_s:.0f} s after it was started"
        if late:
            seen = [Seen(how="late", rank=rank, phase=running[rank].phase, detail=detail) for rank in late]
            self._fail(Failure(seen=tuple(seen), text=""), now)

    def _give_up(self, nodes: Mapping[int, str], now: float) -> None:
        """No rank is running, and without these nodes none will."""
        self._gone |= nodes.keys()
        seen = tuple(Seen(how="lost", node=node, detail=detail) for node, detail in nodes.items())
        self._failure = Failure(seen=seen, text="")
        self._stop(now)

    def _fail(self, failure: Failure, now: float) -> None:
        """This generation is over. Who is left is asked to end first: it may have something to save."""
        self._failure = failure
        seen = [entry.to_json() for entry in failure.seen]
        waiting = [[rank, self._pulses[rank].phase] for rank in sorted(self._pulses.keys() - self._exits.keys())][:16]
        self._tell("trouble", gen=self._generation, step=-1, seen=seen, waiting=waiting)
        self._terminate(self._config.failure_grace_s, now)

    def _terminate(self, grace_s: float, now: float) -> None:
        self.state = ProgramState.TERMINATE
        self._until = now + grace_s
        if len(self._exits) == self._config.world_size:
            self._kill(now)
        else:
            self._tell_nodes({"kind": "terminate", "gen": self._generation})

    def _kill(self, now: float) -> None:
        self.state = ProgramState.KILL
        self._tell_kill((), now)
        self._after_kill(now)

    def _after_kill(self, now: float) -> None:
        if self._awaited:
            return
        failure = self._failure
        restart = (
            failure is not None
            and not failure.refused
            and not self._gone
            and not self._interrupted_by
            and self._restarts < self._config.max_restarts
        )
        if failure is None or not restart:
            self._stop(now)
            return
        self._restarts += 1
        again = f"all ranks start again ({self._restarts} of at most {self._config.max_restarts})"
        self._tell("note", severity="warn", text=f"{self._words(failure)}; {again}")
        self._failure = None
        self._ask_port(now)

    def _lose(self, node: int, detail: str, now: float) -> None:
        if node in self._gone or self.state is ProgramState.OVER:
            return
        self._gone.add(node)
        if self.state in (ProgramState.GATHER, ProgramState.PORT):
            self._give_up({node: detail}, now)
        elif self.state is ProgramState.RUN:
            self._fail(Failure(seen=(Seen(how="lost", node=node, detail=detail),), text=""), now)
        elif self.state is ProgramState.KILL:
            self._awaited.discard(node)
            self._after_kill(now)
        elif self.state is ProgramState.STOP and self._all_gone():
            self._finish()

    def _interrupt(self, by: str, now: float) -> None:
        if self._interrupted_by or self.state in (ProgramState.STOP, ProgramState.OVER):
            return
        self._interrupted_by = by
        self._tell("interrupted", by=by)
        if self.state in (ProgramState.GATHER, ProgramState.PORT):
            self._stop(now)
        elif self.state is ProgramState.RUN:
            self._terminate(self._config.stop_grace_s, now)

    def _overdue(self, now: float) -> None:
        if self.state is ProgramState.GATHER:
            absent = sorted(set(range(self._config.nodes)) - self._heard_at.keys())
            detail = f"its agent did not join within {self._config.join_timeout_s:.0f} s"
            self._give_up(dict.fromkeys(absent, detail), now)
        elif self.state is ProgramState.PORT:
            self._lose(0, f"its agent named no port within {_ANSWER_S:.0f} s", now)
        elif self.state is ProgramState.TERMINATE:
            self._kill(now)
        elif self.state is ProgramState.KILL:
            self._gone |= self._awaited
            self._awaited = set()
            self._after_kill(now)
        elif self.state is ProgramState.STOP:
            self._finish()

    # The end

    def _stop(self, now: float) -> None:
        self.state = ProgramState.STOP
        self._until = now + END_S
        self._tell("outcome", **self._outcome())
        self._tell_nodes({"kind": "stop"})
        if self._all_gone():
            self._finish()

    def _outcome(self) -> dict[str, Any]:
        codes = {rank: ended.code for rank, ended in self._exits.items()}
        whole = self._results.keys() == self._pulses.keys() and codes == self._results
        what: dict[str, Any] = {"gen": self._generation, "restarts": self._restarts}
        if self._failure is not None and not self._interrupted_by:
            failure = self._failure
            how = "refused" if failure.refused else "failed" if self._generation >= 0 else "absent"
            first = failure.seen[0].rank
            # Where the rank itself has said why, that says it all.
            told = first not in self._exits or (self._config.watched and first in self._errors)
            lines = [] if first is None or told else list(self._exits[first].last_lines)
            return {**what, "how": how, "text": self._words(failure), "last_lines": lines}
        if self._interrupted_by and not (whole and not any(codes.values())):
            return {**what, "how": "interrupted", "text": f"stopped by {self._interrupted_by}", "last_lines": []}
        worst = max(codes.values(), default=0)
        return {**what, "how": "ended", "code": worst, "text": "all ranks have ended", "last_lines": []}

    def _words(self, failure: Failure) -> str:
        where = {seen.rank: self._on(seen.rank) for seen in failure.seen if seen.rank is not None}
        hosts = {seen.node: self._hostnames.get(seen.node, "") for seen in failure.seen if seen.node is not None}
        return failure.words(where, hosts)

    def _on(self, rank: int) -> str:
        node = self._nodes[rank]
        return f" on {self._hostnames[node]}" if node in self._hostnames else f" on node {node}"

    def _finish(self) -> None:
        self.state = ProgramState.OVER
        self._tell_end()


def _on_disk(pulse: Pulse) -> bool:
    """It waits for a disk and says so: writing and reading gigabytes may take minutes without CPU time."""
    return pulse.state == "D" and pulse.phase.startswith(("load", "save", "read", "write", "data", "start-up"))
