"""What is watched while ranks start or measure: who has finished, who moves, who is suspected of what. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from seatrial.conductor import watch
from seatrial.conductor.watch import Pulse, Seen

__all__ = ["MOST_STACKS", "Vigil"]

_GRACE_S = 1.0
_PEEK_TIMEOUT_S = 3.0
MOST_STACKS = 16


class Vigil:
    """One generation of ranks, from one step to the next. Times are the conductor's monotonic clock."""

    def __init__(self, ranks: Collection[int], until: float, now: float) -> None:
        self.pulses = {rank: Pulse(moved_at=now) for rank in ranks}
        self.starting = True
        self._begin(ranks, until, now, together=False)

    def begin(self, asked: Collection[int], until: float, now: float, *, together: bool) -> None:
        """A step begins: ``asked`` have until then; ``together``: they wait for one another in it."""
        self.starting = False
        self._begin(asked, until, now, together=together)

    def _begin(self, asked: Collection[int], until: float, now: float, *, together: bool) -> None:
        self.asked = tuple(asked)
        self.done: set[int] = set()
        self._waiting = dict.fromkeys(self.asked)
        self.seen: list[Seen] = []
        self.stacks: dict[int, str] = {}
        self._until, self._together = until, together
        self._grace_until: float | None = None
        self._wanted = False
        self._candidates: list[int] = []
        self._peeked_at: float | None = None
        self._peeked: dict[int, tuple[int, bool]] = {}
        """Rank -> its phases, and whether it was quiet, when its stack was asked for."""
        for rank in self.asked:
            self.pulses[rank].moved_at = self.pulses[rank].entered_at = now

    @property
    def calm(self) -> bool:
        """Nobody is suspected."""
        return self._grace_until is None

    @property
    def complete(self) -> bool:
        """All who were asked have finished."""
        return not self._waiting

    def waiting(self) -> list[int]:
        """Who was asked and has not finished."""
        return list(self._waiting)

    def finished(self, rank: int) -> None:
        """A rank has finished. One that was not asked, or said so before, changes nothing."""
        if rank in self._waiting:
            del self._waiting[rank]
            self.done.add(rank)

    def suspect(self, seen: Seen, now: float) -> None:
        """Note a suspicion. The first to speak is seldom the cause: a peer's "connection reset" overtakes the death."""
        self.seen.append(seen)
        if self._grace_until is None:
            self._grace_until = now + _GRACE_S

    def look(self, now: float) -> Literal["trouble", "deadline"] | None:
        """Whether the step must end now; ``seen`` then tells why."""
        if self._grace_until is not None:
            return "trouble" if now >= self._grace_until else None
        waiting, pulses = self.waiting(), {rank: self.pulses[rank] for rank in self.asked}
        if self.starting:
            self.seen = watch.stopped(pulses, waiting, now)
            if not self.seen and now >= self._until:
                self.seen = watch.at_deadline(pulses, waiting, bool(self.done), {}, (), now)
                return "deadline"
            return "trouble" if self.seen else None
        found = watch.suspects(pulses, waiting, bool(self.done), now, together=self._together)
        if any(seen.how == "frozen" for seen in found) or (found and not self._together):
            self.seen = found
            return "trouble"
        if not self._together:  # who works alone waits for nobody, whatever its stack says
            if now < self._until:
                return None
            self.seen = self._working(waiting, {}, now) or watch.late(pulses, waiting, now)
            return "deadline"
        self._forget_stale_stacks(now)
        absent = [seen.rank for seen in found if seen.rank is not None]
        self._candidates = absent or watch.idle(pulses, waiting, now)
        self._wanted = bool(self._candidates) or now >= self._until
        if not self._wanted or not self._has_stacks(now):
            return None
        # Who is behind in phases may still only wait, for something that was lost on its way: the stacks tell.
        missed = [seen for seen in found if not watch.is_inside(self.stacks.get(seen.rank or 0, ""))]
        self.seen = missed or watch.outside(pulses, self._fresh(waiting), now)
        if self.seen and now < self._until:
            return "trouble"
        if now >= self._until:
            stacks = self._fresh(waiting)
            self.seen = self._working(waiting, stacks, now) or watch.at_deadline(
                pulses, waiting, bool(self.done), stacks, self._peeked, now
            )
            return "deadline"
        return None

    def _working(self, waiting: list[int], stacks: dict[int, str], now: float) -> list[watch.Seen]:
        return [] if self.done else watch.working(self.pulses, waiting, stacks, now)

    def peek(self, now: float) -> list[int]:
        """Whose stacks are needed now: asked for once, and again only after they have become stale."""
        if not self._wanted or self._peeked_at is not None:
            return []
        self._peeked_at = now
        ranks = list(dict.fromkeys([*self._candidates, *self._waiting]))[:MOST_STACKS]
        self._peeked = {rank: self._standing(rank, now) for rank in ranks}
        return ranks

    def _standing(self, rank: int, now: float) -> tuple[int, bool]:
        return self.pulses[rank].number, watch.is_quiet(self.pulses[rank], now)

    def _has_stacks(self, now: float) -> bool:
        if self._peeked_at is None:
            return False
        return self._peeked.keys() <= self.stacks.keys() or now - self._peeked_at >= _PEEK_TIMEOUT_S

    def _fresh(self, waiting: list[int]) -> dict[int, str]:
        return {rank: self.stacks[rank] for rank in waiting if rank in self.stacks}

    def _forget_stale_stacks(self, now: float) -> None:
        """Where somebody has moved on since, a stack says where it was, not where it is.

        Who used CPU time then and does so now may have stayed, and may not: that is looked at again after a while. At
        the deadline they are asked for once more, and then it is decided, moving or not.
        """
        if self._peeked_at is None:
            return
        if now >= self._until:
            stale = self._peeked_at < self._until
        else:
            old = now - self._peeked_at >= watch.PATIENCE_S
            stale = any(
                self._standing(rank, now) != then or (old and not then[1]) for rank, then in self._peeked.items()
            )
        if stale:
            self.stacks, self._peeked, self._peeked_at = {}, {}, None

    def told(self, step: int) -> dict[str, Any]:
        """Payload of the ``trouble`` event."""
        suspected = {seen.rank for seen in self.seen}
        waiting = [rank for rank in self.waiting() if rank not in suspected]
        return {
            "step": step,
            "seen": [seen.to_json() for seen in self.seen],
            "waiting": [[rank, self.pulses[rank].phase] for rank in waiting[:MOST_STACKS]],
        }

    def stacks_wanted(self) -> list[int]:
        """Whose stack belongs to the evidence and was not taken yet: the suspects first, then who waited."""
        suspected = [seen.rank for seen in self.seen if seen.rank is not None]
        ranks = dict.fromkeys([*suspected, *self.waiting()])
        return [rank for rank in ranks if rank not in self.stacks][:MOST_STACKS]

    def guilty(self) -> set[int]:
        """Ranks that are at fault by what was seen, not those that only complained or waited."""
        return {
            seen.rank
            for seen in self.seen
            if seen.rank is not None
            and (seen.how in ("dead", "frozen", "absent", "late") or (seen.how == "error" and seen.detail != "fabric"))
        }

    def shift(self, missed_s: float) -> None:
        """Our own clock missed that time: it is nobody's silence."""
        for pulse in self.pulses.values():
            pulse.shift(missed_s)
        self._until += missed_s
