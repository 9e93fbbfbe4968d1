"""The conductor of a program: every rank executes one argv, and all of them restart when one dies. Pure.

A program gathers the agents, has node 0 find a port, starts the ranks, and watches them until all have ended. When one
fails, the others get SIGTERM and, after a grace, SIGKILL; the next generation starts at another port while restarts are
left.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Mapping

from seatrial.conductor.actions import Actions
from seatrial.conductor.base import BaseConductor
from seatrial.conductor.cancellation import STOP_HEARD_S
from seatrial.conductor.config import ProgramConfig, State
from seatrial.conductor.origin import MAX_STACK_CHARS, brief, cause_of, last_lines
from seatrial.conductor.program_failures import (
    Exit,
    Failure,
    Loss,
    fabric_error,
    first_failure,
    late,
    lost_nodes,
    not_finished,
    not_ready,
    only_stop_signals,
    only_witnesses,
)
from seatrial.conductor.rank_status import RankStatus, Suspicion, behind, entries_of, in_kernel, stopped
from seatrial.conductor.script_failures import advice, ended_ranks, how_stopped, peers, py_spy_hint, with_peers
from seatrial.conductor.script_stacks import WORKS_S, cpu_use, main_thread_frames, ranks_apart
from seatrial.conductor.script_timeouts import late_failure
from seatrial.protocol.commands import AgentReport, DumpStack, FindPort, StartProgram, Terminate
from seatrial.protocol.connecting import may_come_from_others
from seatrial.protocol.events import (
    EndEvent,
    ErrorEvent,
    Event,
    ExitEvent,
    GenerationEvent,
    NoteEvent,
    OutcomeEvent,
    ResultEvent,
    StackEvent,
    TroubleEvent,
)
from seatrial.protocol.fabric_errors import gave_up
from seatrial.protocol.start_fields import ADDRESS
from seatrial.protocol.timeouts import NODE_SILENT_S
from seatrial.util.text import as_name, named_ranks, out_of_memory_words, signal_words

_PORT_TIMEOUT_S = 10.0
_HEAR_ALL_S = 1.0
"""The first error is seldom the cause: the conductor waits this long for others before it names a rank."""
_SETTLE_S = 60.0
"""Time from the first result of a rank to the last one, ten times that where ranks move; and from then to the end."""
_MAX_WAITING = 16
_MOST_STILL = 8
"""Reports of ranks that stand still: each has the stacks of all ranks taken, and one agent can cause one a second."""
_HEAR_STACKS_S = 8.0
"""Time for the answers of ranks that are about to be ended: py-spy has 5 s (``agent/standstill.py``)."""
_MOST_MESSAGE_CHARS = 8_000
"""Bound of the error of a rank: an agent sends no more, unless it lies."""
_ENDED = "its agent ended its ranks"
_MOST_CODES = 4
"""Different exit codes of one training that a note names."""
_STILL_S = 60.0
"""A script that prints nothing and uses no CPU time for so long is reported: torch itself warns of nothing for the 10
to 30 minutes of its timeouts, and people look after a minute."""


class ProgramConductor(BaseConductor):
    """One program. Every public method takes the time (monotonic seconds) and returns the actions."""

    _config: ProgramConfig

    def __init__(self, config: ProgramConfig, now: float) -> None:
        super().__init__(config, config.join_timeout_s, now)
        self._hostnames: dict[int, str] = dict(enumerate(config.hosts))
        self._restarts = 0
        self._failure: Failure | None = None
        self._signals = 0
        """Signals to this process that end the run."""
        self._reset_ranks(now)

    def _reset_ranks(self, now: float) -> None:
        ranks = range(self._config.world_size)
        self._rank_statuses = {rank: RankStatus(moved_at=now, entered_at=now, known_until=now) for rank in ranks}
        self._ready: set[int] = set()
        self._results: dict[int, int] = {}
        """Rank -> the exit code that it announced together with its result."""
        self._finished_hosts: dict[str, float] = {}
        """Host of these ranks -> time of its first result."""
        self._errors: dict[int, tuple[str, str]] = {}
        """Rank -> cause and message of its error."""
        self._exits: dict[int, Exit] = {}
        self._losses: list[Loss] = []
        """Nodes lost while the ranks ran, in the order of the news."""
        self._signaled: set[int] = set()
        """Nodes whose agents were sent a signal, which interrupted the run."""
        self._failed_at: float | None = None
        """Time of the first sign of a failure."""
        self._noted_stopped: set[int] = set()
        self._noted_in_kernel = False
        self._still: dict[int, tuple[float, float]] = {}
        """Rank -> seconds without output and CPU time, and without output alone."""
        self._noted_still: set[frozenset[int]] = set()
        """Ranks that used CPU time while the others stood still; the empty set: all stood still."""
        self._asked: frozenset[int] = frozenset()
        """Ranks that were asked where they stand, until all have answered or ended."""
        self._stacks: dict[int, StackEvent] = {}
        """Their answers."""
        self._asked_at: dict[int, tuple[float, int]] = {}
        """Node -> when its agent was asked last, and the number of that request."""
        self._heard_until: float | None = None
        """Time until which the ranks may answer for which others gave up waiting."""
        self._notes: list[str] = []
        """Facts beside the first failure."""
        self._terminated_at = self._grace_used_s = 0.0
        """When the ranks got SIGTERM, and for how long those had run on that were killed then."""

    def _statuses(self) -> Mapping[int, RankStatus]:
        return self._rank_statuses

    def _shift(self, missed_s: float) -> None:
        for status in self._rank_statuses.values():
            status.shift(missed_s)
        self._finished_hosts = {host: at + missed_s for host, at in self._finished_hosts.items()}
        self._asked_at = {node: (at + missed_s, number) for node, (at, number) in self._asked_at.items()}
        self._failed_at, self._heard_until = (at and at + missed_s for at in (self._failed_at, self._heard_until))

    def interrupt(self, by: str, now: float) -> Actions:
        """End the run early; the second signal to this process ends the grace. SIGQUIT only asks where the ranks are.

        A launcher signals all processes of a job once, so news of an agent or of a launcher may come before a signal to
        this process, and that is the first one still.
        """
        # The question goes out before the ranks get SIGTERM; its heading follows the note of the interruption.
        used = cpu_use({rank: self._still.get(rank, (0.0, 0.0))[0] for rank in self._running()})
        asked = self._ask_where(now) if self.state is State.RUN and not self._config.watched else ""
        if by != "SIGQUIT":
            self._signals += by in signal.Signals.__members__
            if self._signals > 1 and self.state is State.TERMINATE:
                self._kill_left(now)
            else:
                self._interrupt(by, now)
        if asked:
            self._note(f"{by}: {used and f'{used}; '}{asked}")
        return self._take()

    # One generation after the other

    def _begin(self, now: float) -> None:
        """Ask node 0 for a port."""
        self.state = State.PORT
        self._until = now + _PORT_TIMEOUT_S
        self._generation += 1
        self._reset_ranks(now)
        self._send(0, FindPort(kind="port", gen=self._generation))

    def _start(self, address: str, port: int, now: float) -> None:
        config = self._config
        self.state = State.RUN
        self._until = now + config.start_timeout_s  # the deadline of starting, then of ending
        rows = [[rank, *divmod(rank, config.nproc_per_node)] for rank in range(config.world_size)]
        self._note_started(range(config.world_size))
        self._record(GenerationEvent(kind="generation", gen=self._generation, ranks=rows))
        for node in self._heard_at:
            command = StartProgram(
                kind="start_program",
                run=config.run,
                gen=self._generation,
                places=[[rank, local_rank] for rank, at, local_rank in rows if at == node],
                env=dict(config.env),
                program=config.program(address, port, node),
            )
            self._send(node, command)

    # Messages

    def _receive(self, node: int, received: AgentReport | Event, now: float) -> None:
        match received["kind"]:
            case "node":
                if name := brief(received.get("slurm_name") or received["hostname"]):
                    self._hostnames.setdefault(node, as_name(name))
            case "port" if self.state is State.PORT and node == 0 and received["gen"] == self._generation:
                address, port = received["address"], received["port"]
                # All nodes get them.
                if not (isinstance(address, str) and ADDRESS.fullmatch(address)):
                    raise ValueError(f"node 0 names an address that is none: {brief(address)}")
                if type(port) is not int or not 0 < port < 1 << 16:
                    raise ValueError(f"node 0 names a port that is none: {brief(port)}")
                self._start(address, port, now)
            # Where a node was lost or a rank has failed, the signal is what the launcher of the job makes of that.
            # Where another agent had it before, the rank may have failed by it.
            case "signal" if self._failed_at is None or self._signaled or self._only_stop_signals():
                number = received["number"]
                if type(number) is not int or not 0 < number < 128:
                    raise ValueError(f"node {node} names a signal that is none: {brief(number)}")
                self._signaled.add(node)
                self._interrupt(f"{signal_words(number)} to the agent of node {node}", now)
            case _:
                if received.get("gen") == self._generation and "rank" in received:
                    self._receive_from_rank(received, now)

    def _receive_from_rank(self, received: AgentReport | Event, now: float) -> None:
        rank = received.get("rank")
        if not isinstance(rank, int) or rank not in self._rank_statuses:
            raise KeyError(f"rank {rank!r} is not in generation {self._generation}")
        match received["kind"]:
            case "rank":
                self._ready.add(rank)
            case "result" if rank not in self._results:
                self._receive_result(rank, received, now)
            case "error":
                self._receive_error(rank, received, now)
            case "exit" if rank not in self._exits:
                self._receive_exit(rank, received, now)
                self._compare_stacks()
            case "stack" if rank in self._asked and received.get("number") == self._asked_at[self._nodes[rank]][1]:
                self._receive_stack(rank, received)
                self._compare_stacks()
            case _:
                pass

    def _receive_result(self, rank: int, event: ResultEvent, now: float) -> None:
        code = event["code"]
        if not isinstance(event["lines"], list):
            raise TypeError(f"the lines of the result of rank {rank} are no list")
        had_most, is_first = self._most_finished(), not self._results
        self._results[rank] = code
        self._finished_hosts.setdefault(self._places[self._nodes[rank]], now)
        is_last = len(self._results) == self._config.world_size
        # While ranks are being ended, the deadline is that of their end.
        if self.state is State.RUN and (is_first or is_last or self._most_finished() != had_most):
            self._until = now + _SETTLE_S

    def _most_finished(self) -> bool:
        """Return whether ranks of more than half of the hosts have a result: a single one may say so early."""
        return 2 * len(self._finished_hosts) > self._num_hosts()

    def _receive_error(self, rank: int, event: ErrorEvent, now: float) -> None:
        self._errors[rank] = (cause_of(event), brief(event["message"], _MOST_MESSAGE_CHARS))
        self._failed_at = self._failed_at or now

    def _receive_stack(self, rank: int, event: StackEvent) -> None:
        # Compared with those of others as soon as all have answered: that must not fail in their name, nor take long.
        if not isinstance(event["text"], str):
            raise TypeError(f"the stack of rank {rank} is no text")
        text = brief(event["text"], MAX_STACK_CHARS)
        self._stacks[rank] = {**event, "text": text, "state": brief(event["state"]), "wchan": brief(event["wchan"])}

    def _receive_exit(self, rank: int, event: ExitEvent, now: float) -> None:
        code, is_oom, phase = event["code"], "oom_limit_bytes" in event, brief(event["phase"])
        said = last_lines(event)
        self._exits[rank] = ended = Exit(
            rank=rank,
            code=code,
            expected=self._results.get(rank) if self._config.watched else 0,
            ours=bool(event["ours"]),
            oom=out_of_memory_words(event["oom_limit_bytes"]) if is_oom else "",
            at=now,
            phase=phase,
            last_lines=said,
            may_come_from_others=self._num_hosts() > 1 and may_come_from_others(phase, code, said, is_oom=is_oom),
        )
        if ended.ours and self.state is State.RUN and self._unheard_s(self._nodes[rank], now):
            self._node_lost(self._nodes[rank], _ENDED, now)
        if ended.failed:
            self._failed_at = self._failed_at or now
            if rank not in self._errors and (text := fabric_error(ended)):
                self._errors[rank] = ("fabric", text)
        if len(self._exits) == self._config.world_size:
            self._all_ended(now)

    def _all_ended(self, now: float) -> None:
        if self.state is State.RUN:
            if self._only_stop_signals():
                return  # A canceled job signals its agents, too: they are about to report that, or _watch goes on.
            if self._failed_at is not None:
                self._fail_first(now)
            elif nodes := sorted({self._nodes[rank] for rank, ended in self._exits.items() if ended.ours}):
                # Nobody had asked for that: an agent does so where it hears nothing from this process.
                self._fail(self._lost_nodes([self._loss(node, _ENDED, now) for node in nodes]), now)
            else:
                self._stop(now)
        elif self.state is State.TERMINATE:
            self._kill_left(now)

    def _only_stop_signals(self) -> bool:
        return not self._losses and only_stop_signals(self._exits, self._errors)

    def _agent_ended(self, node: int, end: EndEvent, now: float) -> None:
        self._lose(node, "its agent ended", now)

    # Trouble

    def _take_still(self, still: Mapping[str, list[float]], now: float) -> None:
        self._still.update({int(rank): (float(still_s), float(quiet_s)) for rank, (still_s, quiet_s) in still.items()})

    def _note_still(self, running: Collection[int], now: float) -> None:
        """Have it said where the ranks are, once for each set of those that work while the others stand still."""
        seconds = {rank: self._still.get(rank, (0.0, 0.0)) for rank in running if self._nodes[rank] not in self._gone}
        waiting = {rank for rank, (still_s, _) in seconds.items() if still_s >= _STILL_S}
        working = frozenset(
            rank for rank, (still_s, quiet_s) in seconds.items() if still_s < WORKS_S and quiet_s >= _STILL_S
        )
        # A rank that is in neither set may stand still as well in a moment, or has printed something.
        if not waiting or len(waiting) + len(working) < len(seconds) or working in self._noted_still:
            return
        if len(self._noted_still) >= _MOST_STILL:
            return
        self._noted_still.add(working)
        found = f"no rank has printed anything or used CPU time for {_STILL_S:.0f} s"
        if working:
            uses = "uses" if len(working) == 1 else "use"
            found = (
                f"no rank has printed anything for {_STILL_S:.0f} s; {named_ranks(sorted(working))} {uses} CPU time,"
                f" {named_ranks(sorted(waiting))} none"
            )
        self._note(f"{found}; {self._ask_where(now)}")

    def _running(self) -> dict[int, RankStatus]:
        return {rank: status for rank, status in self._rank_statuses.items() if rank not in self._exits}

    def _ask_where(self, now: float) -> str:
        """Have the agents report where the ranks of a script are; return the heading of what they report.

        An agent that still owes answers is not asked again: it takes seconds for them, and all that it should do after
        each question waits meanwhile, such as the end of its ranks.
        """
        running = sorted(self._rank_statuses.keys() - self._exits.keys())
        if not running:
            return ""
        owing = {self._nodes[rank] for rank in self._asked.intersection(running) - self._stacks.keys()}
        busy = {node for node in owing if now - self._asked_at.get(node, (now, 0))[0] < _HEAR_STACKS_S}
        self._asked = frozenset(running)
        self._stacks = {rank: seen for rank, seen in self._stacks.items() if self._nodes[rank] in busy}
        for node in sorted(self._heard_at.keys() - busy):
            number = self._asked_at.get(node, (now, 0))[1] + 1
            self._asked_at[node] = now, number
            self._send(node, DumpStack(kind="dump_stack", number=number, ranks=running))
        ended = ended_ranks(self._exits)
        return f"what each running rank does (last output, state, stack){ended and f'; {ended}'}"

    def _compare_stacks(self) -> None:
        """Once all have answered that run still, say which of them stand elsewhere than the others."""
        if self._asked and self._asked <= self._stacks.keys() | self._exits.keys():
            self._asked = frozenset()
            if text := ranks_apart(self._stacks):
                self._note(text)
            if not self._interrupted_by and (
                missing := [rank for rank, seen in self._stacks.items() if not main_thread_frames(seen["text"])]
            ):
                hosts = sorted({self._hostnames.get(self._nodes[rank], "") for rank in missing})
                self._note(py_spy_hint(self._config.argv[0], hosts, ends=self._heard_until is not None))

    def _watch(self, now: float) -> None:
        heard_at = self._read_until
        waited_s = 0.0 if self._failed_at is None else heard_at - self._failed_at
        # A rank that only complains of others may know of a death, or of a lost node, before the conductor does.
        witnesses = waited_s and not self._losses and only_witnesses(self._exits, self._errors)
        hear_all_s = STOP_HEARD_S if self._only_stop_signals() else _HEAR_ALL_S
        if waited_s >= hear_all_s + (NODE_SILENT_S if witnesses else 0.0):
            if not (witnesses and self._hears_the_late(now)):
                self._fail_first(now)
            return
        running = self._running()
        frozen = stopped(running, running, heard_at)
        if self._config.watched and frozen and any(status.blocked_since is None for status in running.values()):
            self._fail(Failure(suspicions=tuple(frozen), text=""), now)
            return
        self._note_stopped(frozen)
        if not self._config.watched:
            self._note_still(running, now)
        elif heard_at >= self._until and self._failed_at is None:
            self._fail_late(running, now)
        elif not self._noted_in_kernel and (text := in_kernel(running, self._on_host)):
            self._noted_in_kernel = True
            self._note(text)

    def _hears_the_late(self, now: float) -> bool:
        """Ask the ranks for which others gave up waiting where they are, once; return whether they may still answer."""
        if self._config.watched or not any(gave_up(text) for _, text in self._errors.values()):
            return False
        if self._heard_until is None:
            self._heard_until = now + _HEAR_STACKS_S
            if asked := self._ask_where(now):
                self._note(f"some ranks gave up waiting for others; {asked}")
        return bool(self._asked) and self._read_until < self._heard_until

    def _fail_first(self, now: float) -> None:
        failure = first_failure(self._exits, self._errors, self._losses, self._lost_nodes)
        running = self._rank_statuses.keys() - self._exits.keys()
        if not self._config.watched:
            late = None
            if not self._losses and only_witnesses(self._exits, self._errors):
                late = late_failure(self._exits, self._errors, self._stacks, running, self._on_host)
            failure = late or with_peers(failure, self._exits, running, self._on_host)
        if (ended := None if failure.rank is None else self._exits.get(failure.rank)) is not None:
            if self._config.watched:  # a training reports the errors of its ranks itself
                others = behind(self._rank_statuses, running, failure.suspicions[0], self._on_host, ended.at)
            else:
                others = "" if failure.whole else "; ".join(peers(ended, self._exits, running))
            found = (others, advice(ended, self._on_host(ended.rank), lacks_script_here=self._config.lacks_script_here))
            self._notes = [note for note in found if note]
        self._fail(failure, now)

    def _note_stopped(self, frozen: list[Suspicion]) -> None:
        for suspicion in frozen:
            rank = suspicion.rank
            if rank is not None and rank not in self._noted_stopped:
                self._noted_stopped.add(rank)
                text = f"rank {rank}{self._on_host(rank)} has been stopped (state T) for {suspicion.waited_s:.0f} s"
                self._record(NoteEvent(kind="note", severity="warn", text=text))

    def _fail_late(self, running: Mapping[int, RankStatus], now: float) -> None:
        phases = {rank: status.phase for rank, status in running.items()}
        left = sorted(self._rank_statuses.keys() - self._results.keys())
        if not self._results:
            if unready := {rank: phase for rank, phase in phases.items() if rank not in self._ready}:
                self._fail(not_ready(unready, self._ready, self._config.start_timeout_s), now)
        elif left:
            moved_at = max(self._rank_statuses[rank].moved_at for rank in left)
            # Of three hosts, two that work on are no less right than one that has finished; of two, nobody knows.
            moved_at = min(moved_at, min(self._finished_hosts.values()) + 9 * _SETTLE_S)
            is_due = self._is_doubted or self._num_hosts() == 2 or self._most_finished()
            if is_due or self._read_until - moved_at >= _SETTLE_S:
                left_in = {rank: self._rank_statuses[rank].phase for rank in left}
                self._fail(not_finished(left_in, self._results, _SETTLE_S), now)
        elif phases:
            self._fail(late(phases, f"was still running {_SETTLE_S:.0f} s after all ranks had finished"), now)

    def _node_silent(self, node: int, silent_s: float, now: float) -> None:
        if self.state not in (State.STOP, State.OVER):
            self._lose(node, f"its agent sent nothing for {silent_s:.0f} s", now)

    def _node_lost(self, node: int, detail: str, now: float) -> None:
        if self.state in (State.GATHER, State.PORT):
            self._give_up({node: detail}, now)
        elif self.state is State.RUN:
            # A launcher that ends the whole job ends its agents one after the other.
            self._losses.append(self._loss(node, detail, now))
            self._failed_at = self._failed_at or now
        elif self._still_blames_nodes() and node not in self._signaled:
            self._losses.append(self._loss(node, detail, now))
            self._failure = self._lost_nodes(self._losses)

    def _still_blames_nodes(self) -> bool:
        if self._failure is not None:  # the launcher of the job may take longer to end it than we waited
            return self._failure.is_of_nodes and self.state in (State.TERMINATE, State.KILL)
        # The signal was what the launcher made of the loss, and it arrived first.
        return self.state is State.TERMINATE and bool(self._signaled)

    def _loss(self, node: int, detail: str, now: float) -> Loss:
        silent, unheard_s = self._is_silent(node), self._unheard_s(node, now)
        return Loss(node=node, at=now, detail=detail, unheard_s=unheard_s, is_silent=silent)

    def _lost_nodes(self, losses: list[Loss]) -> Failure:
        return lost_nodes(losses, self._places, ends_together=self._config.ends_together)

    def _give_up(self, nodes: Mapping[int, str], now: float) -> None:
        """Stop: no rank is running, and without these nodes none will. ``nodes``: node -> how it was lost."""
        self._gone |= nodes.keys()
        self._failure = self._lost_nodes([self._loss(node, detail, now) for node, detail in nodes.items()])
        self._stop(now)

    def _fail(self, failure: Failure, now: float) -> None:
        """End this generation. The ranks that are left get SIGTERM first: they may have something to save."""
        self._failure = failure
        running = self._running()
        if self._config.watched and (text := in_kernel(running, self._on_host)):
            self._notes = [*self._notes, text]
        self._record(
            TroubleEvent(
                kind="trouble",
                gen=self._generation,
                step=-1,
                seen=entries_of(failure.suspicions),
                waiting=[[rank, running[rank].phase] for rank in sorted(running)[:_MAX_WAITING]],
            )
        )
        self._terminate(self._config.failure_grace_s, now)

    def _terminate(self, grace_s: float, now: float) -> None:
        self.state = State.TERMINATE
        self._terminated_at = now
        self._until = now + grace_s
        if all(rank in self._exits or self._nodes[rank] in self._gone for rank in self._rank_statuses):
            self._kill((), now)
        else:
            self._send_all(Terminate(kind="terminate", gen=self._generation))

    def _kill_left(self, now: float) -> None:
        """End the ranks that SIGTERM did not."""
        self._grace_used_s = now - self._terminated_at
        self._kill((), now)

    def _generation_killed(self, now: float) -> None:
        failure = self._failure
        if failure is None or self._interrupted_by or not self._may_restart(failure):
            self._stop(now)
            return
        self._restarts += 1
        restart_text = f"all ranks restart (restart {self._restarts} of at most {self._config.max_restarts})"
        text = f"{self._sentence(failure)}; {restart_text}"
        self._record(NoteEvent(kind="note", severity="warn", text=text))
        self._failure = None
        self._begin(now)

    def _may_restart(self, failure: Failure) -> bool:
        return not failure.refused and not self._gone and self._restarts < self._config.max_restarts

    def _kill_overdue(self, nodes: list[int], now: float) -> None:
        """Nothing: the nodes count as gone, so that there is no restart."""

    def _end_early(self, now: float) -> None:
        if self.state in (State.GATHER, State.PORT):
            self._stop(now)
        elif self.state is State.RUN:
            self._terminate(self._config.stop_grace_s, now)

    def _absent(self, nodes: list[int], now: float) -> None:
        detail = f"its agent did not join within {self._join_timeout_s:.0f} s"
        self._give_up(dict.fromkeys(nodes, detail), now)

    def _state_overdue(self, now: float) -> None:
        if self.state is State.PORT:
            self._lose(0, f"its agent named no port within {_PORT_TIMEOUT_S:.0f} s", now)
        elif self.state is State.TERMINATE:
            self._kill_left(now)

    # The end

    def _stop(self, now: float) -> None:
        self._record(self._outcome())
        super()._stop(now)

    def _outcome(self) -> OutcomeEvent:
        codes = {rank: ended.code for rank, ended in self._exits.items()}
        all_reported = self._results.keys() == self._rank_statuses.keys() and codes == self._results
        outcome = OutcomeEvent(
            kind="outcome",
            gen=self._generation,
            restarts=self._restarts,
            how="ended",
            text="all ranks have ended",
            last_lines=[],
        )
        failure = self._failure
        # An interruption hides no failure, but for one after which all ranks would have started again.
        if failure is not None and not (self._interrupted_by and self._may_restart(failure)):
            outcome["how"] = "refused" if failure.refused else "failed" if self._generation >= 0 else "absent"
            outcome["text"] = self._sentence(failure)
            first = failure.rank
            if self._notes:
                outcome["notes"] = self._notes
            shown = None if first is None else self._exits.get(first)
            # Where the rank itself reported the error, its last lines add nothing.
            if shown is not None and not (self._config.watched and first in self._errors and shown.code > 0):
                outcome["last_lines"] = list(shown.last_lines)
        elif self._interrupted_by and not (all_reported and not any(codes.values())):
            outcome["how"] = "interrupted"
            outcome["text"] = f"stopped by {self._interrupted_by}{self._how_stopped()}"
        else:
            outcome["code"] = max(codes.values(), default=0)
            if self._config.watched and len(counts := Counter(codes.values())) > 1:
                ended = (
                    f"{named_ranks([rank for rank, other in sorted(codes.items()) if other == code])} with {code}"
                    for code, _ in counts.most_common(_MOST_CODES)
                )
                self._note(f"the exit codes of the ranks differ: {', '.join(ended)}; the largest one counts")
        return outcome

    def _how_stopped(self) -> str:
        if self._generation < 0:
            return " before the ranks were started"
        return f"; {how_stopped(self._exits, self._rank_statuses.keys(), self._grace_used_s, self._on_host)}"

    def _sentence(self, failure: Failure) -> str:
        hosts = {item.rank: self._on_host(item.rank) for item in failure.suspicions if item.rank is not None}
        return failure.sentence(hosts, self._hostnames)

    def _on_host(self, rank: int) -> str:
        node = self._nodes[rank]
        if node not in self._hostnames:
            return f" on node {node}"
        name = self._hostnames[node]
        # One machine may be several nodes.
        several = Counter(self._hostnames.values())[name] > 1
        return f" on node {node} ({name})" if several else f" on node {name}"
