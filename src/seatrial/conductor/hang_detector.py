"""The hang detector: which ranks have finished, which make progress, and which are suspected of what. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Literal

from seatrial.conductor import rank_status
from seatrial.conductor.cancellation import STOP_HEARD_S
from seatrial.conductor.rank_status import Deadline, RankStatus, Suspicion, entries_of
from seatrial.protocol.events import TroubleEvent
from seatrial.protocol.rank_stacks import innermost_frame
from seatrial.protocol.timeouts import NODE_SILENT_S, PATIENCE_S

GRACE_S = 1.0
"""Time from the first suspicion to trouble: the first report is seldom the cause."""
_RETURN_S = 5.0
"""After a stall of the control network nodes are silent, and heard again, one after the other: while only silent ones
are suspected each such event lengthens the grace, until then."""
_SILENT_S = 10.0
"""A host under load takes its time: until then nothing is known of a rank whose stack has not come, and nothing is
decided, at the deadline neither. Shorter than PATIENCE_S, after which the stacks of ranks that spin are requested
again."""
_FIRST_PAUSE_S = 1.0
"""Between the first two requests for stacks, also at the deadline: an agent of eight ranks answers in about that
time."""
_STATUSES_AFTER = 2
"""Statuses that must follow a stack before it counts: the first one may be read so soon that a rank which goes on has
used no CPU time yet, and the next one is read a second later."""
MAX_STACKS = 16
"""Stacks that are requested at once, and ranks that an event lists as waiting."""


class HangDetector:
    """Watches one generation of ranks while it starts and in each step. Times are the conductor's monotonic clock."""

    def __init__(self, hosts: Mapping[int, str], until: float, now: float) -> None:
        """Begin the start of the ranks, which ends at ``until``. ``hosts``: rank -> its host."""
        self._hosts = hosts
        self.statuses = {rank: RankStatus(moved_at=now, entered_at=now, known_until=now) for rank in hosts}
        self.starting = True
        self.request_number = 0
        """Number of the last request for stacks, which the answers repeat."""
        self._begin(hosts, until, now, together=False, cut_short=False)

    def begin(
        self, asked: Collection[int], until: float, now: float, *, together: bool, cut_short: bool = False
    ) -> None:
        """Begin a step of the ranks ``asked``, which ends at ``until``. ``together``: they wait for one another.

        ``cut_short``: the trial has less time left than the step is allowed.
        """
        self.starting = False
        self._begin(asked, until, now, together=together, cut_short=cut_short)

    def _begin(self, asked: Collection[int], until: float, now: float, *, together: bool, cut_short: bool) -> None:
        self.asked = tuple(asked)
        self._done_at: dict[int, float] = {}
        self._waiting = dict.fromkeys(self.asked)
        self.suspicions: list[Suspicion] = []
        self._ends_otherwise = False
        """Something else than a suspicion ends the step."""
        self._reported: set[tuple[str, int | None, int | None]] = set()
        """Kind, rank and node of each suspicion that was reported."""
        self._hears_stop = False
        """The grace was lengthened for the agents to report a signal."""
        self.stacks: dict[int, str] = {}
        """Rank -> the answer of its agent, which is empty or half of a stack where the rank took too long."""
        self._counts_from: dict[int, int] = {}
        """Rank -> how many statuses of it must have come before its stack counts."""
        self._until, self._together = until, together
        self._deadline = Deadline(allowed_s=until - now, cut_short=cut_short)
        self._grace_began = now
        self._grace_until: float | None = None
        self._polled_at = now
        self._wanted = False
        self._candidates: list[int] = []
        self._requested_at: float | None = None
        self._next_request_at, self._request_pause_s = now, _FIRST_PAUSE_S
        self._requested: dict[int, tuple[int, bool]] = {}
        """Rank -> its phases, and whether it was quiet, when its stack was requested."""
        for rank in self.asked:
            self.statuses[rank].begin(now)

    @property
    def calm(self) -> bool:
        """No rank is suspected, and nothing else ends the step."""
        return self._grace_until is None

    @property
    def may_be_stopped(self) -> bool:
        """All that was heard are complaints of the fabric, and ranks that a signal ended which stops jobs."""
        return all(
            suspicion.stopped_from_outside or (suspicion.how, suspicion.detail) == ("error", "fabric")
            for suspicion in self.suspicions
        )

    @property
    def complete(self) -> bool:
        """All ranks of the step have finished."""
        return not self._waiting

    def waiting(self) -> list[int]:
        """Return the ranks of the step that have not finished."""
        return list(self._waiting)

    def is_awaited(self, rank: int) -> bool:
        """Return whether the step asks this rank, and it has not finished."""
        return rank in self._waiting

    def finished(self, rank: int, now: float) -> None:
        """Take note that a rank has finished. A rank outside the step, or a repeated report, changes nothing."""
        if rank in self._waiting:
            del self._waiting[rank]
            self._done_at[rank] = now

    def suspect(self, suspicion: Suspicion, now: float) -> None:
        """Note a suspicion. The first is seldom the cause: a peer's "connection reset" arrives before the death.

        One of each kind of a rank or node counts, and a stop signal lengthens the grace once: no agent delays the end.
        """
        origin = suspicion.how, suspicion.rank, suspicion.node
        if origin in self._reported:
            return
        self._reported.add(origin)
        self.suspicions.append(suspicion)
        self._begin_grace(now)
        self._await_silent(now)
        if suspicion.stopped_from_outside and self.may_be_stopped and not self._hears_stop:
            self._hears_stop = True
            self._grace_until = max(self._grace_until or now, now + STOP_HEARD_S)

    def end_soon(self, now: float) -> None:
        """End the step as a suspicion does, with all that is heard until then: something else ends it."""
        self._ends_otherwise = True
        self._begin_grace(now)

    def silent_nodes(self) -> set[int]:
        """Return the nodes that are suspected because they are silent."""
        silent = (suspicion.node for suspicion in self.suspicions if suspicion.how == "silent")
        return {node for node in silent if node is not None}

    def heard_again(self, nodes: Collection[int], now: float) -> None:
        """Take back that these nodes are silent, and go on if nothing else ends the step."""
        self._reported -= {("silent", None, node) for node in nodes}
        self.suspicions = [other for other in self.suspicions if other.how != "silent" or other.node not in nodes]
        if self.suspicions or self._ends_otherwise:
            self._await_silent(now)
        else:
            self._grace_until = None

    def _begin_grace(self, now: float) -> None:
        if self._grace_until is None:
            self._grace_began, self._grace_until = now, now + GRACE_S

    def _await_silent(self, now: float) -> None:
        """Lengthen the grace if only silent nodes end the step: some were just silent, or were just heard again."""
        if not self._ends_otherwise and len(self.silent_nodes()) == len(self.suspicions):
            self._grace_until = max(self._grace_until or now, min(now, self._grace_began + _RETURN_S) + GRACE_S)

    def poll(self, now: float) -> Literal["trouble", "deadline"] | None:
        """Return whether the step must end now; ``suspicions`` then holds the reason.

        ``now``: all that had arrived by then was taken in.
        """
        self._polled_at = now
        if self._grace_until is not None:
            return "trouble" if now >= self._grace_until else None
        waiting, statuses = self.waiting(), {rank: self.statuses[rank] for rank in self.asked}
        # The wait for stacks after the deadline has nobody named for what others do meanwhile.
        seen_at = min(now, self._until)
        had_not_finished = [*waiting, *(rank for rank, done_at in self._done_at.items() if done_at > seen_at)]
        ahead = rank_status.find_ahead(statuses, had_not_finished, self._hosts, seen_at)
        if self.starting:
            self.suspicions = rank_status.stopped(statuses, waiting, now)
            if not self.suspicions and self._is_late(now):
                self.suspicions = rank_status.at_start_deadline(statuses, waiting, ahead, now)
                return "deadline"
            return "trouble" if self.suspicions else None
        suspects = rank_status.suspects(statuses, waiting, ahead, now, together=self._together)
        if any(suspicion.how == "frozen" for suspicion in suspects) or (suspects and not self._together):
            self.suspicions = suspects
            return "trouble"
        if not self._together:  # a rank that works alone waits for nobody, whatever its stack
            if not self._is_late(now):
                return None
            self.suspicions = rank_status.alone_at_deadline(statuses, waiting, ahead, seen_at, self._deadline)
            return "deadline"
        self._forget_stale_stacks(now)
        absent = [suspicion.rank for suspicion in suspects if suspicion.rank is not None]
        self._candidates = absent or rank_status.idle(statuses, waiting, now)
        self._wanted = bool(self._candidates) or now >= self._until
        if not self._wanted or not self._has_stacks(now) or (now >= self._until and not self._is_late(now)):
            return None
        # A rank with fewer phases may only wait, for a message that was lost on its way: its stack shows that.
        asked = {rank: self._hosts[rank] for rank in self._requested if rank in self._waiting}
        stacks = self._fresh(waiting)
        self.suspicions = rank_status.absent_by_stack(suspects, stacks, asked)
        self.suspicions = self.suspicions or rank_status.outside(statuses, stacks, asked, now)
        if self.suspicions and now < self._until:
            return "trouble"
        if now >= self._until:
            moved = [rank for rank, (_, quiet) in self._requested.items() if quiet and not self._progress(rank, now)[1]]
            self.suspicions = rank_status.at_deadline(
                statuses, waiting, ahead, stacks, asked, seen_at, self._deadline, moved
            )
            return "deadline"
        self.suspicions = rank_status.all_wait(statuses, waiting, stacks, now)
        return "trouble" if self.suspicions else None

    def _is_late(self, now: float) -> bool:
        """Return whether the deadline has passed, and what was sent before it has arrived.

        A status that came later shows that, or else the silence of a node ends the step.
        """
        all_seen = all(self.statuses[rank].known_until >= self._until for rank in self._waiting)
        return now >= self._until and (all_seen or now >= self._until + NODE_SILENT_S)

    def stacks_to_request(self, now: float) -> list[int]:
        """Return the ranks whose stacks are needed now: once, and again where they are stale or an answer shows none.

        Reading stacks keeps an agent from its other work. So the pause before the next request doubles up to
        PATIENCE_S, however often a rank claims to have moved; at the deadline it begins anew. ``now``: of the request,
        perhaps later than the last ``poll``, which has found who moves.
        """
        if not self._wanted:
            return []
        if self._requested_at is None and self._polled_at >= self._until:
            self._next_request_at, self._request_pause_s = now, _FIRST_PAUSE_S
        if now < self._next_request_at:
            return []
        if self._requested_at is None:
            self._requested_at = now
            self.request_number += 1
            in_turn = dict.fromkeys([*self._over_hosts(self._candidates), *self._over_hosts(self._waiting)])
            self._requested = {rank: self._progress(rank, self._polled_at) for rank in islice(in_turn, MAX_STACKS)}
            ranks = list(self._requested)
        else:
            ranks = [rank for rank in self._requested if rank in self.stacks.keys() - self._shown()]
            self.stacks = self._shown()
        if ranks:
            self._next_request_at = now + self._request_pause_s
            self._request_pause_s = min(2 * self._request_pause_s, PATIENCE_S)
        return ranks

    def answer(self, rank: int, number: object, stack: str) -> None:
        """Take in the stack of a rank. One that came too late for its request says nothing about where the rank is.

        The first one that shows where it is counts: an agent that repeats its answers delays nothing.
        """
        is_shown = innermost_frame(self.stacks.get(rank, "")) is not None
        if rank in self._requested and number == self.request_number and not is_shown:
            self.stacks[rank] = stack
            self._counts_from[rank] = self.statuses[rank].received + _STATUSES_AFTER

    def _over_hosts(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks with the first one of each host in front, then the second ones: each host has one word."""
        turns = Counter[str]()
        in_turn = []
        for rank in ranks:
            in_turn.append((turns[self._hosts[rank]], rank))
            turns[self._hosts[rank]] += 1
        return [rank for _, rank in sorted(in_turn, key=lambda turn: turn[0])]

    def _progress(self, rank: int, now: float) -> tuple[int, bool]:
        status = self.statuses[rank]
        return status.number, status.still_s(now) >= PATIENCE_S

    def _has_stacks(self, now: float) -> bool:
        """Return whether each rank that was asked, and has not finished, showed its stack, or was silent for long.

        A stack is newer than the last status, and the rank may have gone on between them. So statuses must follow,
        which come in order on the same connection: as long as that rank is known, and no longer.
        """
        if self._requested_at is None:
            return False
        asked, shown = self._requested.keys() & self._waiting.keys(), self._shown().keys()
        for rank in asked & shown & self._counts_from.keys():
            status = self.statuses[rank]
            if status.received < self._counts_from[rank] and status.is_known(now):
                return False
        return asked <= shown or now - self._requested_at >= _SILENT_S

    def _shown(self) -> dict[int, str]:
        """Return the stacks that show where a rank is."""
        return {rank: text for rank, text in self.stacks.items() if innermost_frame(text) is not None}

    def _fresh(self, waiting: list[int]) -> dict[int, str]:
        shown = self._shown()
        return {rank: shown[rank] for rank in waiting if rank in shown}

    def _forget_stale_stacks(self, now: float) -> None:
        """Drop the stacks if a rank has made progress since: a stack shows where the rank was, not where it is.

        A rank that used CPU time then and does so now may be in the same place or not, so its stack is requested again
        after PATIENCE_S. At the deadline all stacks are requested once more, and those decide.
        """
        if self._requested_at is None:
            return
        if now >= self._until:
            stale = self._requested_at < self._until
        else:
            old = now - self._requested_at >= PATIENCE_S
            stale = any(
                self._progress(rank, now) != then or (old and not then[1]) for rank, then in self._requested.items()
            )
        if stale:
            self.stacks, self._requested, self._requested_at = {}, {}, None

    def trouble_payload(self, generation: int, step: int) -> TroubleEvent:
        """Return the ``trouble`` event with all suspicions. ``step``: -1 while the ranks start."""
        suspected = {suspicion.rank for suspicion in self.suspicions}
        waiting = [rank for rank in self.waiting() if rank not in suspected]
        return TroubleEvent(
            kind="trouble",
            gen=generation,
            step=step,
            seen=entries_of(self.suspicions),
            waiting=[[rank, self.statuses[rank].phase] for rank in waiting[:MAX_STACKS]],
        )

    def stacks_wanted(self) -> list[int]:
        """Return the ranks whose stacks are missing in the evidence: the suspects first, then those that waited."""
        suspected = [suspicion.rank for suspicion in self.suspicions if suspicion.rank is not None]
        ranks = dict.fromkeys([*suspected, *self.waiting()])
        shown = self._shown()
        return [rank for rank in ranks if rank not in shown][:MAX_STACKS]

    def guilty(self) -> set[int]:
        """Return the ranks that are at fault, without those that only complained of the fabric or waited, and those
        that another one may have ended."""
        return {
            suspicion.rank
            for suspicion in self.suspicions
            if suspicion.rank is not None
            and not suspicion.may_come_from_others
            and (
                suspicion.how in ("dead", "frozen", "absent", "late")
                or (suspicion.how == "error" and suspicion.detail != "fabric")
            )
        }

    def shift(self, missed_s: float) -> None:
        """Extend all deadlines by a pause of this process, which counts for nobody."""
        for status in self.statuses.values():
            status.shift(missed_s)
        self._done_at = {rank: at + missed_s for rank, at in self._done_at.items()}
        self._until += missed_s
        self._polled_at += missed_s
        self._next_request_at += missed_s
        if self._requested_at is not None:
            self._requested_at += missed_s
        self._grace_began += missed_s
        if self._grace_until is not None:
            self._grace_until += missed_s
