"""Who is frozen, who is absent, who is only waiting. Pure: statuses and times in, suspicions out.

All ranks of a step pass the same phases in the same order, so the rank with the fewest is the one that the others wait
for. Phase numbers are comparable within one step; ``pulses`` holds the ranks that were asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "PATIENCE_S",
    "Pulse",
    "Seen",
    "at_deadline",
    "idle",
    "is_inside",
    "is_quiet",
    "late",
    "outside",
    "stopped",
    "suspects",
    "working",
]

PATIENCE_S = 15.0
_RECENTLY_S = 5.0
"""Who entered a phase so shortly before a deadline was getting on."""
_WAITS = (
    "/torch/distributed/",
    "/torch/cuda/",
    "/seatrial/worker/groups.py",
    *(f"/seatrial/worker/mpi{part}.py" for part in ("", "_group", "_lane", "_library", "_work")),
    "wait_for_others",
)
"""Marks of a frame that waits for other ranks. Waits in C++ that our own code calls stand in functions of that name."""
_INSIDE = (*_WAITS, "/torch/autograd/")
"""Backward waits for others, too; but where CPU time is used it may as well compute."""
_STEP_LOOP = "worker/main.py"
_CPU_NOISE_S = 0.2
"""CPU time that a waiting process may use in the time of patience without counting as alive."""


@dataclass(slots=True, kw_only=True)
class Pulse:
    """One rank's last status and since when it has not moved. Times are the conductor's monotonic clock."""

    state: str = "R"
    cpu_s: float = 0.0
    number: int = 0
    phase: str = ""
    moved_at: float = 0.0
    """Last time that a phase was entered or CPU time was used."""
    entered_at: float = 0.0
    """Last time that a phase was entered: who waits may spin."""
    held_since: float | None = None
    """Since when it has been in state T or D without a break."""

    def update(self, status: tuple[str, float, int, str], now: float) -> None:
        """Take in a status of the agent."""
        state, cpu_s, number, phase = status
        moved = number != self.number or cpu_s - self.cpu_s > _CPU_NOISE_S
        if moved:
            self.moved_at, self.cpu_s = now, cpu_s
        if number != self.number:
            self.entered_at = now
        self.number, self.phase, self.state = number, phase, state
        if state not in ("T", "t", "D"):
            self.held_since = None
        elif self.held_since is None or (state == "D" and moved):
            self.held_since = now  # a disk that is slow is in state D at every look, and moves all the same

    def shift(self, missed_s: float) -> None:
        """Our own clock missed that time: it is nobody's silence."""
        self.moved_at += missed_s
        self.entered_at += missed_s
        if self.held_since is not None:
            self.held_since += missed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One suspicion, as the ``trouble`` event tells it."""

    how: Literal["dead", "error", "frozen", "absent", "stuck", "lost", "silent", "late", "working"]
    rank: int | None = None
    node: int | None = None
    phase: str = ""
    waited_s: float = 0.0
    detail: str = ""

    def to_json(self) -> dict[str, object]:
        """JSON for the event."""
        who: dict[str, object] = {"rank": self.rank} if self.node is None else {"node": self.node}
        return {**who, "how": self.how, "phase": self.phase, "waited_s": round(self.waited_s, 1), "detail": self.detail}


def stopped(pulses: Mapping[int, Pulse], waiting_for: Collection[int], now: float) -> list[Seen]:
    """Who was stopped while starting. Waiting for a slow file system in an import is no fault, so only T counts."""
    return [
        _frozen(rank, pulses[rank], now)
        for rank in sorted(waiting_for)
        if pulses[rank].state in ("T", "t")
        and (since := pulses[rank].held_since) is not None
        and now - since >= PATIENCE_S
    ]


def suspects(
    pulses: Mapping[int, Pulse], waiting_for: Collection[int], others_done: bool, now: float, *, together: bool
) -> list[Seen]:
    """Who must be taken for frozen or absent now, before any deadline.

    ``waiting_for``: ranks that have not finished the step; ``others_done``: somebody has. ``together``: ranks wait for
    one another in this step. Stopped or uninterruptible for the time of patience is frozen. Absent is who has not moved
    for so long while others are further on.
    """
    frozen = [
        _frozen(rank, pulses[rank], now)
        for rank in sorted(waiting_for)
        if (since := pulses[rank].held_since) is not None and now - since >= PATIENCE_S
    ]
    if frozen or not waiting_for or not (together or others_done):
        return frozen
    furthest = max(pulse.number for pulse in pulses.values())
    fewest = min(pulses[rank].number for rank in waiting_for)
    return [
        Seen(
            how="absent",
            rank=rank,
            phase=pulses[rank].phase,
            waited_s=now - pulses[rank].moved_at,
            detail=f"no progress and no CPU time, state {pulses[rank].state}, while others are further on",
        )
        for rank in sorted(waiting_for)
        if pulses[rank].number == fewest < furthest and now - pulses[rank].moved_at >= PATIENCE_S
    ]


def is_quiet(pulse: Pulse, now: float) -> bool:
    """Whether it has not moved for the time of patience."""
    return now - pulse.moved_at >= PATIENCE_S


def idle(pulses: Mapping[int, Pulse], waiting_for: Collection[int], now: float) -> list[int]:
    """Who is quiet and has the fewest phases, while nobody enters a phase: hung, or waiting for others."""
    if any(now - pulses[rank].entered_at < PATIENCE_S for rank in waiting_for):
        return []
    fewest = min((pulses[rank].number for rank in waiting_for), default=0)
    return [rank for rank in waiting_for if pulses[rank].number == fewest and is_quiet(pulses[rank], now)]


def outside(pulses: Mapping[int, Pulse], stacks: Mapping[int, str], now: float) -> list[Seen]:
    """Who never entered what the others wait in, by the stacks of ranks that enter no phase.

    Inside is who waits for others by what its innermost Python frame is. If all are inside, or none, nobody can be told
    apart. Nor while somebody works: all the others may wait for that one.
    """
    if any(not is_quiet(pulses[rank], now) and not is_inside(text, _WAITS) for rank, text in stacks.items()):
        return []
    inside = [rank for rank, text in stacks.items() if is_inside(text)]
    return [
        Seen(
            how="absent",
            rank=rank,
            phase=pulses[rank].phase,
            waited_s=now - pulses[rank].moved_at,
            detail=f"it stands in {_short(frame)}, outside of the operation that {_ranks(inside)} wait in",
        )
        for rank, text in sorted(stacks.items())
        if inside and (frame := _innermost(text)) is not None and not is_inside(text)
    ]


def is_inside(text: str, marks: Sequence[str] = _INSIDE) -> bool:
    """Whether a stack, in faulthandler's words, is that of a rank that waits for others."""
    frame = _innermost(text)
    return frame is not None and any(mark in frame for mark in marks)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:4])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{' and others' if len(ranks) > 4 else ''}"


def _short(frame: str) -> str:
    """``File "/a/b/file.py", line 5 in name`` as ``name (file.py line 5)``."""
    place, _, rest = frame.partition('", line ')
    line, _, name = rest.partition(" in ")
    return f"{name} ({place.rpartition('/')[2]} line {line})"


def _innermost(text: str) -> str | None:
    """The innermost frame of the thread that runs the steps, in faulthandler's words."""
    for thread in text.split("\n\n"):
        frames = [line.strip() for line in thread.splitlines() if line.lstrip().startswith("File ")]
        if any(_STEP_LOOP in frame for frame in frames):
            return frames[0]
    return None


def at_deadline(
    pulses: Mapping[int, Pulse],
    waiting_for: Collection[int],
    others_done: bool,
    stacks: Mapping[int, str],
    peeked: Collection[int],
    now: float,
) -> list[Seen]:
    """Who is told of when the deadline of a step passes: those who are behind, or all alike as stuck together.

    Who waits inside an operation is behind for no fault of its own: what it waits for did not come. ``peeked`` are the
    ranks that were asked for their stacks; who gave none is outside. Of thousands only some are asked: of the others
    nobody knows where they are, so where somebody waits inside they are not told of.
    """
    held = _held(pulses, waiting_for, now)
    if held:
        return held
    inside = {rank for rank, text in stacks.items() if is_inside(text)}
    if inside:
        behind = [rank for rank in sorted(waiting_for) if rank in peeked and rank not in inside]
    else:
        furthest = max((pulse.number for pulse in pulses.values()), default=0)
        behind = [rank for rank in sorted(waiting_for) if pulses[rank].number < furthest or others_done]
    if behind and (others_done or len(behind) < len(waiting_for)):
        fewest = min(pulses[rank].number for rank in behind)
        return late(pulses, [rank for rank in behind if pulses[rank].number == fewest], now)
    return [
        Seen(how="stuck", rank=rank, phase=pulses[rank].phase, waited_s=now - pulses[rank].moved_at)
        for rank in sorted(waiting_for)
    ]


def working(
    pulses: Mapping[int, Pulse], waiting_for: Collection[int], stacks: Mapping[int, str], now: float
) -> list[Seen]:
    """All of them, if nobody has finished and all were getting on when the deadline passed: it was too short.

    ``waiting_for``: all who were asked. None, where all that are known wait for one another.
    """
    if any(now - pulses[rank].entered_at > _RECENTLY_S for rank in waiting_for) or _held(pulses, waiting_for, now):
        return []
    if stacks and all(is_inside(text, _WAITS) for text in stacks.values()):
        return []
    return [Seen(how="working", rank=rank, phase=pulses[rank].phase) for rank in sorted(waiting_for)]


def late(pulses: Mapping[int, Pulse], ranks: Collection[int], now: float) -> list[Seen]:
    """Each of these had not finished when the deadline passed; one that is held is frozen."""
    held = {seen.rank: seen for seen in _held(pulses, ranks, now)}
    return [
        held.get(rank)
        or Seen(
            how="late",
            rank=rank,
            phase=pulses[rank].phase,
            waited_s=now - pulses[rank].moved_at,
            detail=f"state {pulses[rank].state}, had not finished when the deadline passed",
        )
        for rank in sorted(ranks)
    ]


def _held(pulses: Mapping[int, Pulse], ranks: Collection[int], now: float) -> list[Seen]:
    """Who is stopped now, or has been uninterruptible for the time of patience."""
    return [
        _frozen(rank, pulses[rank], now)
        for rank in sorted(ranks)
        if (since := pulses[rank].held_since) is not None
        and (pulses[rank].state in ("T", "t") or now - since >= PATIENCE_S)
    ]


def _frozen(rank: int, pulse: Pulse, now: float) -> Seen:
    since = pulse.held_since if pulse.held_since is not None else now
    name = "stopped" if pulse.state in ("T", "t") else "in uninterruptible sleep"
    return Seen(
        how="frozen", rank=rank, phase=pulse.phase, waited_s=now - since, detail=f"state {pulse.state} ({name})"
    )
