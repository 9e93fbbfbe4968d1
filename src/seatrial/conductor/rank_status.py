"""Which ranks are frozen, which are absent, and which only wait. Pure: statuses and times in, suspicions out.

All ranks of a step pass the same phases in the same order, so the others wait for the rank that entered the fewest.
Phase numbers are comparable within one step. ``statuses`` holds the ranks that take part in the step, and ``waiting``
those of them that have not finished it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.conductor.cancellation import is_stop_signal
from seatrial.conductor.origin import brief
from seatrial.protocol.connecting import OTHERS_HAD_ITS_CORE, may_come_from_others
from seatrial.protocol.rank_stacks import innermost_frame
from seatrial.protocol.timeouts import PATIENCE_S, STATUS_S, STUCK_S, patience_s
from seatrial.util.text import as_name, named_ranks

_WAITS = (
    "/torch/distributed/",
    "/torch/cuda/",
    "/torch/nn/parallel/distributed.py",  # In the first forward after a step, DDP agrees upon its buckets.
    "/torch/_ops.py",  # The functional collectives of DTensor.
    *(f"/seatrial/rank/{name}.py" for name in ("groups", "gloo_store", "page_store", "word_page")),
    "/seatrial/training/strategies/checked_group.py",
    *(f"/seatrial/mpi_backend/{name}.py" for name in ("register", "group", "lane", "library", "work")),
    "wait_for_others",
)
"""Parts of frames that wait for other ranks. Our own functions that wait in C++ have wait_for_others in their name."""
_INSIDE = (*_WAITS, "/torch/autograd/")
"""A backward pass waits for others, too; but while it uses CPU time it may as well compute."""

_MOST_ENTRY_BYTES = 4 << 20
"""Bytes of all entries of a ``trouble`` event as JSON, half of what a message can hold."""
_LEAST_BEHIND_S = 5.0
"""A rank that has been in its phase for less may only have been a moment late."""
_MOST_PHASES = 4
"""Phases that a note names."""
_CPU_NOISE_S = 0.2
"""CPU time that a waiting process may use within PATIENCE_S without counting as progress."""
_HELD_SHARE = 0.2
"""The share of its time without a core from which on a rank is not late through its fault: the checks of CPUs demand
that a rank has one for 80 %."""
_MOSTLY_HELD_SHARE = 0.5
"""The same share from which on it makes progress, as far as others let it: with more of a core it uses CPU time. The
moments in which a waiting thread wakes up on a busy host are fewer."""
_UNKNOWN_S = 3 * STATUS_S
"""After so long without a status nobody knows what a rank does: an agent that reads stacks leaves one or two out."""


@dataclass(slots=True, kw_only=True)
class RankStatus:
    """A rank's last status, and since when it has made no progress. Times are the conductor's monotonic clock."""

    state: str = "R"
    """State letter of /proc."""
    cpu_s: float = 0.0
    """CPU time when it last counted as progress, in seconds."""
    number: int = 0
    """Phases entered so far."""
    phase: str = ""
    """Label of the current phase."""
    moved_at: float
    """Last time that it entered a phase or used CPU time."""
    entered_at: float
    """Last time that it entered a phase: a rank that waits may spin."""
    blocked_since: float | None = None
    """Since when it has been in state T or D without a break, as statuses of this step show. None: it is not."""
    seen_at: float = 0.0
    """Time of this status."""
    received: int = 0
    """Statuses that have come."""
    known_until: float
    """Until when statuses show what it did: late ones come all at once, and the first one is as old as the wait."""
    held_s: float = 0.0
    """Seconds for which a thread of it could run and others had its core, so far."""
    held_before: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The same when it last moved, when it last entered a phase, and when the step began."""
    begun_at: float = 0.0
    """The time at which the step began."""

    @property
    def is_blocked(self) -> bool:
        """Whether statuses have shown it in state T or D for PATIENCE_S. An agent may be able to send none for long."""
        return self.blocked_since is not None and self.seen_at - self.blocked_since >= PATIENCE_S

    def still_s(self, now: float) -> float:
        """Return for how long statuses until ``now`` have shown no progress."""
        return min(now, self.known_until) - self.moved_at

    def in_phase_s(self, now: float) -> float:
        """Return for how long statuses until ``now`` have shown it in its phase."""
        return min(now, self.known_until) - self.entered_at

    def is_known(self, now: float) -> bool:
        """Return whether its last status says what it does at ``now``."""
        return now - self.seen_at <= _UNKNOWN_S

    @property
    def is_held(self) -> bool:
        """Whether other processes had its core for a part of this step, or of its phase, that explains a delay."""
        _, entered_s, begun_s = self.held_before
        return any(
            self.seen_at > since and self.held_s - before_s >= _HELD_SHARE * (self.seen_at - since)
            for since, before_s in ((self.entered_at, entered_s), (self.begun_at, begun_s))
        )

    def begin(self, now: float) -> None:
        """Begin a step: what the rank did, and waited for, before counts no more."""
        self.moved_at = self.entered_at = self.begun_at = now
        self.held_before = (self.held_s,) * 3
        self.blocked_since = None

    def update(self, status: tuple[str, float, int, str], now: float, held_s: float = 0.0) -> None:
        """Take in (state, CPU seconds, phases entered, phase), and the seconds without a core, as its agent read."""
        state, cpu_s, number, phase = status
        moved_s, entered_s, begun_s = self.held_before
        self.seen_at = now
        self.received += 1
        self.known_until = min(now, self.known_until + _UNKNOWN_S)
        is_held = held_s - moved_s > max(_CPU_NOISE_S, _MOSTLY_HELD_SHARE * (now - self.moved_at))
        moved = number != self.number or cpu_s - self.cpu_s > _CPU_NOISE_S or is_held
        if moved:
            self.moved_at, self.cpu_s, moved_s = now, cpu_s, held_s
        if number != self.number:
            self.entered_at, entered_s = now, held_s
        self.held_s, self.held_before = held_s, (moved_s, entered_s, begun_s)
        self.number, self.phase, self.state = number, phase, state
        if state not in ("T", "t", "D"):
            self.blocked_since = None
        elif self.blocked_since is None or (state == "D" and moved):
            self.blocked_since = now  # a rank on a slow disk is in state D whenever we read it, and makes progress

    def shift(self, missed_s: float) -> None:
        """Move all times by a pause of this process, which counts for nobody."""
        self.moved_at += missed_s
        self.entered_at += missed_s
        self.seen_at += missed_s
        self.known_until += missed_s
        self.begun_at += missed_s
        if self.blocked_since is not None:
            self.blocked_since += missed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """One suspicion of the ``trouble`` event, about a rank or a node."""

    how: Literal["dead", "error", "frozen", "absent", "stuck", "lost", "silent", "late", "working"]
    rank: int | None = None
    node: int | None = None
    phase: str = ""
    """Phase of the rank, or of the node's first rank."""
    waited_s: float = 0.0
    """Seconds without progress or without a message."""
    detail: str = ""
    stopped_from_outside: bool = False
    """The rank was ended by a signal that somebody sends to stop a job. Not in the event: its detail has the code."""
    may_come_from_others: bool = False
    """Another rank may have ended it, since it was connecting to other hosts. Not in the event."""

    def to_json(self) -> dict[str, object]:
        """Return the entry of the event."""
        subject: dict[str, object] = {"rank": self.rank} if self.node is None else {"node": self.node}
        waited_s = round(max(0.0, self.waited_s), 1)  # a rank may have moved since the deadline
        return {**subject, "how": self.how, "phase": self.phase, "waited_s": waited_s, "detail": self.detail}


def entries_of(suspicions: Sequence[Suspicion]) -> list[dict[str, object]]:
    """Return the entries of the ``trouble`` event, with texts of ranks so short that a message can hold all of them."""
    entries = [suspicion.to_json() for suspicion in suspicions]
    most = _MOST_ENTRY_BYTES // max(1, len(entries))
    for entry in entries:
        if len(json.dumps(entry)) > most:
            # The parts that ranks may have written; a character outside of Unicode's first plane takes 12 bytes.
            entry.update({key: str(entry[key])[: most // 40] for key in ("phase", "detail")})
    return entries


def dead(
    rank: int, phase: str, code: object, *, is_oom: bool, num_hosts: int, device_lines: Sequence[str]
) -> Suspicion:
    """Return that the process of a rank is gone.

    Args:
        rank: The rank.
        phase: Its last phase.
        code: Its exit code.
        is_oom: Whether the kernel's out-of-memory killer ended it.
        num_hosts: Hosts of all ranks of the generation.
        device_lines: Its last output if it had a GPU.
    """
    number = code if isinstance(code, int) else 0
    return Suspicion(
        how="dead",
        rank=rank,
        phase=phase,
        detail=f"exit code {brief(code)}",
        stopped_from_outside=is_stop_signal(number),
        may_come_from_others=num_hosts > 1 and may_come_from_others(phase, number, device_lines, is_oom=is_oom),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far more than half of the hosts say that they are: a host that lies has one word, and of two none decides."""

    done: bool = False
    """Each of them has a rank that finished."""
    furthest: int = 0
    """Each of them has a rank that entered this many phases."""


def find_ahead(
    statuses: Mapping[int, RankStatus], waiting: Collection[int], hosts: Mapping[int, str], now: float
) -> Ahead:
    """Return how far most hosts were at ``now``, until when all ranks were heard: later on others may be as far.

    ``hosts``: rank -> its host, as the conductor knows it. ``waiting``: ranks that had not finished then.
    """
    furthest: dict[str, int] = {}
    for rank, status in statuses.items():
        number = status.number if status.entered_at <= now else 0
        furthest[hosts[rank]] = max(number, furthest.get(hosts[rank], number))
    done = {hosts[rank] for rank in statuses.keys() - set(waiting)}
    in_order = sorted(furthest.values(), reverse=True)
    return Ahead(done=2 * len(done) > len(in_order), furthest=in_order[len(in_order) // 2] if in_order else 0)


def stopped(statuses: Mapping[int, RankStatus], waiting: Collection[int], now: float) -> list[Suspicion]:
    """Return the ranks that were stopped (state T).

    It is asked while ranks start, and during a training. State D is no fault then: an import, a checkpoint, a log, and
    in any phase a page of a library may come from a file system that others keep from answering.
    """
    return [
        _frozen(rank, statuses[rank], now)
        for rank in sorted(waiting)
        if statuses[rank].state in ("T", "t") and statuses[rank].is_blocked
    ]


def suspects(
    statuses: Mapping[int, RankStatus], waiting: Collection[int], ahead: Ahead, now: float, *, together: bool
) -> list[Suspicion]:
    """Return the ranks that are frozen or absent, before any deadline.

    A rank that has been in state T or D for PATIENCE_S is frozen. A rank that is quiet while most hosts entered more
    phases is absent, unless it is about to count as frozen. ``together``: the ranks of this step wait for one another.
    """
    frozen = [_frozen(rank, statuses[rank], now) for rank in sorted(waiting) if statuses[rank].is_blocked]
    if frozen or not waiting or not (together or ahead.done):
        return frozen
    fewest = min(statuses[rank].number for rank in waiting)
    return [
        Suspicion(
            how="absent",
            rank=rank,
            phase=statuses[rank].phase,
            waited_s=now - statuses[rank].moved_at,
            detail=f"no progress and no CPU time, state {statuses[rank].state}",
        )
        for rank in sorted(waiting)
        if statuses[rank].number == fewest < ahead.furthest
        and is_quiet(statuses[rank], now)
        and statuses[rank].blocked_since is None
    ]


def behind(
    statuses: Mapping[int, RankStatus],
    running: Collection[int],
    witness: Suspicion,
    on_host: Callable[[int], str],
    now: float,
) -> str:
    """Return a phrase about the ranks of a training that entered fewer phases than one that complains; may be empty.

    It says where they are, and accuses nobody: of others, or of a link, each may have waited there. ``running``: ranks
    that still run. ``on_host``: rank -> " on HOST". ``now``: when it complained.
    """
    if witness.how != "error" or witness.rank is None:
        return ""
    number = statuses[witness.rank].number
    return _by_phase(
        {
            rank: in_phase_s
            for rank in running
            if statuses[rank].number < number and (in_phase_s := statuses[rank].in_phase_s(now)) >= _LEAST_BEHIND_S
        },
        statuses,
        on_host,
    )


def in_kernel(statuses: Mapping[int, RankStatus], on_host: Callable[[int], str]) -> str:
    """Return a phrase about the ranks of a training that have been in state D for PATIENCE_S; may be empty.

    It accuses nobody. ``on_host``: rank -> " on HOST".
    """
    seconds = {
        rank: status.seen_at - status.blocked_since
        for rank, status in statuses.items()
        if status.state == "D" and status.blocked_since is not None and status.is_blocked
    }
    found = _by_phase(seconds, statuses, on_host)
    return found and f"waiting in the kernel (state D) for a file system or a device, {found}"


def _by_phase(seconds: Mapping[int, float], statuses: Mapping[int, RankStatus], on_host: Callable[[int], str]) -> str:
    """Return a phrase about the phases in which ranks had been. ``seconds``: rank -> for how long."""
    by_phase = dict[str, list[int]]()
    for rank in sorted(seconds):
        by_phase.setdefault(statuses[rank].phase, []).append(rank)
    return "; ".join(
        f"{named_ranks(ranks)}{on_host(ranks[0]) if len(ranks) == 1 else ''} had"
        f" {f'been in {as_name(phase)}' if phase else 'entered no phase'} for"
        f" {min(seconds[rank] for rank in ranks):.0f} s"
        for phase, ranks in [*by_phase.items()][:_MOST_PHASES]
    )


def is_quiet(status: RankStatus, now: float) -> bool:
    """Return whether a rank has made no progress for PATIENCE_S, as its statuses show; not if the last one is old."""
    return status.is_known(now) and status.still_s(now) >= PATIENCE_S


def idle(statuses: Mapping[int, RankStatus], waiting: Collection[int], now: float) -> list[int]:
    """Return the quiet ranks with the fewest phases, if no rank enters a phase: they hang, or wait for others."""
    if any(statuses[rank].in_phase_s(now) < PATIENCE_S for rank in waiting):
        return []
    fewest = min((statuses[rank].number for rank in waiting), default=0)
    return [rank for rank in waiting if statuses[rank].number == fewest and is_quiet(statuses[rank], now)]


def outside(
    statuses: Mapping[int, RankStatus], stacks: Mapping[int, str], asked: Mapping[int, str], now: float
) -> list[Suspicion]:
    """Return the ranks that never entered the operation that others wait in, by the stacks of ranks without progress.

    A rank whose innermost Python frame waits for others is inside. If all are inside, or none, no rank is suspected;
    nor is one while a rank computes outside, since all others may wait for it. ``asked``: see ``apart``.
    """
    if any(not is_quiet(statuses[rank], now) and not is_inside(text, _WAITS) for rank, text in stacks.items()):
        return []
    inside = [rank for rank, text in stacks.items() if is_inside(text)]
    known = apart(stacks, asked)
    return [
        Suspicion(
            how="absent",
            rank=rank,
            phase=statuses[rank].phase,
            waited_s=now - statuses[rank].moved_at,
            detail=f"it is in {_short(frame)}, outside the operation that {_ranks(inside)} wait in",
        )
        for rank, text in sorted(stacks.items())
        if rank in known and (frame := innermost_frame(text)) is not None
    ]


def apart(stacks: Mapping[int, str], asked: Mapping[int, str]) -> set[int]:
    """Return the ranks that do not wait in the operation in which more than half of the hosts have a rank that waits.

    Of two hosts one is enough for a rank of the other one whose own stack is elsewhere. ``asked``: each rank that was
    asked for its stack -> its host. One that showed none was silent for long, and counts as one that does not wait.
    """
    inside = {rank for rank, text in stacks.items() if is_inside(text)}
    saying, hosts = {asked[rank] for rank in inside & asked.keys()}, set(asked.values())
    if 2 * len(saying) > len(hosts):
        return asked.keys() - inside
    if len(saying) == 1 and len(hosts) == 2:
        return {rank for rank in asked.keys() - inside if innermost_frame(stacks.get(rank, "")) is not None}
    return set()


def all_wait(
    statuses: Mapping[int, RankStatus], waiting: Collection[int], stacks: Mapping[int, str], now: float
) -> list[Suspicion]:
    """Return all ranks as stuck once each has waited inside an operation for STUCK_S, without any CPU time.

    So a link that carries nothing ends a step of hours in minutes. Each rank must have shown its stack: one that is
    outside may still come.
    """
    quiet = all(statuses[rank].is_known(now) and statuses[rank].still_s(now) >= STUCK_S for rank in waiting)
    if quiet and all(is_inside(stacks.get(rank, ""), _WAITS) for rank in waiting):
        return _all("stuck", statuses, waiting, now)
    return []


def absent_by_stack(
    suspects: Sequence[Suspicion], stacks: Mapping[int, str], asked: Collection[int]
) -> list[Suspicion]:
    """Return the suspects that do not wait inside an operation, by their stacks; see ``apart`` for one without a stack.

    Of many ranks only some are asked, and nothing is known of the others: a single rank that claims to be far ahead
    puts all of them behind, and they may wait for those that were asked.
    """
    outside = {rank for rank in asked if not is_inside(stacks.get(rank, ""))}
    return [suspicion for suspicion in suspects if suspicion.rank in outside]


def is_inside(text: str, marks: Sequence[str] = _INSIDE) -> bool:
    """Return whether a stack, as faulthandler writes it, is that of a rank that waits for others."""
    frame = innermost_frame(text)
    return frame is not None and any(mark in frame for mark in marks)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:4])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{' and others' if len(ranks) > 4 else ''}"


def _short(frame: str) -> str:
    """Return ``File "/a/b/file.py", line 5 in name`` as ``name (file.py line 5)``."""
    path, _, rest = frame.partition('", line ')
    line, _, name = rest.partition(" in ")
    return f"{name} ({path.rpartition('/')[2]} line {line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The deadline that ended a step."""

    allowed_s: float
    """Seconds that the step had."""
    cut_short: bool = False
    """The deadline of the whole trial came before that of the step."""


def at_deadline(
    statuses: Mapping[int, RankStatus],
    waiting: Collection[int],
    ahead: Ahead,
    stacks: Mapping[int, str],
    asked: Mapping[int, str],
    now: float,
    deadline: Deadline,
    moved: Collection[int] = (),
) -> list[Suspicion]:
    """Return the suspects when a deadline ends a step whose ranks wait for one another.

    Ranks that stand still outside are late. If all stand still inside, all are stuck together. While a rank still makes
    progress and none stands still outside, all are working: the time was too short.

    A rank that waits inside an operation is behind through no fault: the message that it waits for did not come.
    ``asked``: see ``apart``. Of thousands only some are asked: nothing is known of the others, so they are not
    suspected. ``now``: when the deadline passed; the stacks may have come some time later. A rank that has entered a
    phase since, or is one of those that ``moved``, may have waited until then, and is nowhere by its stack. One whose
    core others had is at work.
    """
    known = [rank for rank in _not_held(statuses, waiting) if rank not in moved and statuses[rank].entered_at <= now]
    if deadline.cut_short or not ahead.done:
        known = [rank for rank in known if _is_still(statuses[rank], deadline.allowed_s, now)]
    return _blocked(statuses, waiting, now) or _behind(statuses, waiting, known, ahead, stacks, asked, now)


def at_start_deadline(
    statuses: Mapping[int, RankStatus], waiting: Collection[int], ahead: Ahead, now: float
) -> list[Suspicion]:
    """Return the suspects when the ranks had no more time to start: those behind the others, or all as stuck."""
    asked = dict.fromkeys(waiting, "")
    known = _not_held(statuses, waiting)
    return _blocked(statuses, waiting, now) or _behind(statuses, waiting, known, ahead, {}, asked, now)


def _behind(
    statuses: Mapping[int, RankStatus],
    waiting: Collection[int],
    known: Collection[int],
    ahead: Ahead,
    stacks: Mapping[int, str],
    asked: Mapping[int, str],
    now: float,
) -> list[Suspicion]:
    """Return the ranks behind as late, or all as stuck or working. ``known``: those of ``waiting`` that stand still."""
    behind = [rank for rank in known if statuses[rank].number < ahead.furthest or ahead.done]
    if inside := {rank for rank, text in stacks.items() if is_inside(text)}:
        behind = sorted((apart(stacks, asked).intersection(known) | asked.keys() & set(behind)) - inside)
    named = [rank for rank in behind if rank in asked]
    if named and (ahead.done or len(behind) < len(waiting)):
        fewest = min(statuses[rank].number for rank in named)
        return _late(statuses, [rank for rank in named if statuses[rank].number == fewest], now)
    return _all("stuck" if len(known) == len(waiting) else "working", statuses, waiting, now)


def alone_at_deadline(
    statuses: Mapping[int, RankStatus], waiting: Collection[int], ahead: Ahead, now: float, deadline: Deadline
) -> list[Suspicion]:
    """Return the suspects when a deadline ends a step in which each rank works alone: those that are late.

    If the trial's deadline left it less time, a rank that uses CPU time may be at work until most hosts are done.
    """
    blocked = _blocked(statuses, waiting, now)
    computes = deadline.cut_short and not ahead.done
    known = [
        rank
        for rank in _not_held(statuses, waiting)
        if (ahead.done and not deadline.cut_short)
        or _is_late(statuses[rank], deadline.allowed_s, now, computes=computes)
    ]
    return [
        *blocked,
        *_late(statuses, [rank for rank in known if rank not in {suspicion.rank for suspicion in blocked}], now),
    ] or _all("working", statuses, waiting, now)


def _not_held(statuses: Mapping[int, RankStatus], waiting: Collection[int]) -> list[int]:
    return [rank for rank in sorted(waiting) if not statuses[rank].is_held]


def _is_still(status: RankStatus, allowed_s: float, now: float) -> bool:
    """Return whether a rank has been in one phase for PATIENCE_S, or for less in a short step without CPU time."""
    is_still = status.in_phase_s(now) >= PATIENCE_S or status.still_s(now) >= patience_s(allowed_s)
    return is_still and status.is_known(now)


def _is_late(status: RankStatus, allowed_s: float, now: float, *, computes: bool) -> bool:
    """Return whether a rank that works alone has stood still; one that ``computes`` may do so in one phase."""
    still_s = status.still_s(now) if computes else status.in_phase_s(now)
    return still_s >= patience_s(allowed_s) and status.is_known(now)


def _all(
    how: Literal["stuck", "working"], statuses: Mapping[int, RankStatus], ranks: Collection[int], now: float
) -> list[Suspicion]:
    """Return one suspicion for each rank. ``stuck``: one that uses CPU time while another uses none says so."""
    quiet = {rank for rank in ranks if is_quiet(statuses[rank], now)}
    return [
        Suspicion(
            how=how,
            rank=rank,
            phase=statuses[rank].phase,
            waited_s=now - statuses[rank].entered_at,
            detail=(
                "uses CPU time"
                if how == "stuck" and quiet and rank not in quiet
                else OTHERS_HAD_ITS_CORE
                if how == "working" and statuses[rank].is_held
                else ""
            ),
        )
        for rank in sorted(ranks)
    ]


def _late(statuses: Mapping[int, RankStatus], ranks: Collection[int], now: float) -> list[Suspicion]:
    return [
        Suspicion(
            how="late",
            rank=rank,
            phase=statuses[rank].phase,
            waited_s=now - statuses[rank].entered_at,
            detail=f"state {statuses[rank].state}, had not finished when the deadline passed",
        )
        for rank in sorted(ranks)
    ]


def _blocked(statuses: Mapping[int, RankStatus], ranks: Collection[int], now: float) -> list[Suspicion]:
    """Return the ranks that are stopped now, or have been in state D for PATIENCE_S."""
    return [
        _frozen(rank, statuses[rank], now)
        for rank in sorted(ranks)
        if statuses[rank].is_blocked
        or (statuses[rank].blocked_since is not None and statuses[rank].state in ("T", "t"))
    ]


def _frozen(rank: int, status: RankStatus, now: float) -> Suspicion:
    since = status.blocked_since if status.blocked_since is not None else now
    name = "stopped" if status.state in ("T", "t") else "in uninterruptible sleep"
    return Suspicion(
        how="frozen", rank=rank, phase=status.phase, waited_s=now - since, detail=f"state {status.state} ({name})"
    )
