"""Connections that have not proved that they know the token, and which of them makes room for a newcomer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from seatrial.conductor.peer import Peer

_PROOF_S = 2.0
"""In this time no newcomer takes the place of an agent that has said hello. Munge needs two processes, and perhaps a
resolver; a neighbor needs no secret for a hello."""


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The strangers from one place, in the order in which they came, or said hello."""

    silent: dict[Peer, None] = field(default_factory=dict)
    """Connections without a hello."""
    greeted: dict[Peer, float] = field(default_factory=dict)
    """Peer -> when it said hello."""

    def __len__(self) -> int:
        return len(self.silent) + len(self.greeted)


class Strangers:
    """All of them, by where they come from: among many of them one to drop is found as fast as among few."""

    def __init__(self) -> None:
        self._crowds: dict[str, _Crowd] = {}
        """Source -> those from there; the source of the newest one is the last one."""
        self._attached: set[Peer] = set()
        """On connections that we made: those make no room, since nobody would make them again."""
        self._num_accepted = 0

    def __len__(self) -> int:
        return len(self._attached) + self._num_accepted

    @property
    def num_accepted(self) -> int:
        """How many came by themselves."""
        return self._num_accepted

    def __contains__(self, peer: object) -> bool:
        if not isinstance(peer, Peer):
            return False
        crowd = self._crowds.get(peer.source)
        return peer in self._attached or (crowd is not None and (peer in crowd.silent or peer in crowd.greeted))

    def __iter__(self) -> Iterator[Peer]:
        yield from self._attached
        for crowd in self._crowds.values():
            yield from crowd.silent
            yield from crowd.greeted

    def add(self, peer: Peer) -> None:
        """Take in a new connection."""
        if peer.attached is not None:
            self._attached.add(peer)
            return
        crowd = self._crowds.pop(peer.source, None) or _Crowd()
        self._crowds[peer.source] = crowd
        crowd.silent[peer] = None
        self._num_accepted += 1

    def greeted(self, peer: Peer, now: float) -> None:
        """Take note that one has said hello."""
        if peer.attached is None:
            crowd = self._crowds[peer.source]
            del crowd.silent[peer]
            crowd.greeted[peer] = now

    def discard(self, peer: Peer) -> None:
        """Forget a connection that was closed, or whose agent has proved that it knows the token."""
        self._attached.discard(peer)
        if peer in self and peer.attached is None:
            crowd = self._crowds[peer.source]
            crowd.silent.pop(peer, None)
            crowd.greeted.pop(peer, None)
            self._num_accepted -= 1
            if not crowd:
                del self._crowds[peer.source]

    def one_to_hear(self) -> Peer | None:
        """Return the oldest one that has not said hello, as a real agent does at once, from where most come; None: none
        came after it."""
        silent = list(islice((peer for crowd in self._largest() for peer in crowd.silent), 2))
        return silent[0] if len(silent) > 1 else None

    def one_to_drop(self, now: float) -> Peer | None:
        """Return one from where most come, where there is none to hear; None: nobody came.

        That is the oldest one whose time for its proof is over, or else the newest one: if that has just come, it is
        not answered first. A real agent that is dropped tries again.
        """
        crowds = self._largest()
        firsts = (next(iter(crowd.greeted.items())) for crowd in crowds if crowd.greeted)
        late = next((peer for peer, at in firsts if at < now - _PROOF_S), None)
        return late or (next(reversed(crowds[-1].silent or crowds[-1].greeted)) if crowds else None)

    def _largest(self) -> list[_Crowd]:
        """Return those from where most come. From several places as many may: these are then looked at as one crowd,
        the oldest place first."""
        most = max(map(len, self._crowds.values()), default=0)
        return [crowd for crowd in self._crowds.values() if len(crowd) == most]
