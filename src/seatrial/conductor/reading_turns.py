"""The order in which peers are read, and the time until which all that had arrived was read. Pure.

Reading what one host sends takes as long as that host likes: small messages of its agents may be dear to take in, and a
disk of the controller may be slow. Hence hosts take turns, first those that took the least time; and whoever has to
answer in time is judged by the last look at all sockets since which everything that lay there was read, not by the
clock. Only a host that takes more than its time keeps nobody waiting: what lies unread then is its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from seatrial.conductor.peer import Peer

_HOST_S = 1.0
"""The time in which all that lies in the sockets of one host at one look is read (half a MiB for each agent), or else
is no longer waited for. Connections that have not proved that they know the token share the time of one host."""


class ReadingTurns:
    """The turns of one server. Times are its monotonic clock."""

    def __init__(self, now: float) -> None:
        self.read_until = now
        """All that had arrived by then was read and taken in."""
        self._looked_at = now
        self._unread: dict[Peer, int] = {}
        """Peer -> the most bytes that may still lie unread in its socket since that look; 0: only lines wait."""
        self._took_s: defaultdict[str, float] = defaultdict(float)
        """Host -> how long reading it has taken since that look."""
        self._host_read_at: dict[str, float] = {}
        self._read_at: dict[Peer, float] = {}

    def begin_round(self, at: float, unread: Mapping[Peer, int]) -> None:
        """Take note of a look at all sockets, which began at ``at``.

        ``unread``: peer with something to read, or with lines -> the bytes that its socket can hold: no more are read
        before its turn counts, so that a peer that sends without end keeps nobody waiting for long.
        """
        for peer in self._unread.keys() - unread.keys():
            del self._unread[peer]
        self._note_all_read()
        if not self._unread:
            self._looked_at, self._unread = at, dict(unread)
            self._took_s.clear()
            self._note_all_read()

    def add(self, peer: Peer, door: Peer, most_bytes: int) -> None:
        """Take note of a connection that came by ``door``: it may have been there at the last look, with its words."""
        if door in self._unread:
            self._unread[peer] = most_bytes

    def took(self, peer: Peer, num_bytes: int, *, is_empty: bool) -> None:
        """Take note of bytes that were received. ``is_empty``: nothing more lay there."""
        if peer in self._unread:
            self._unread[peer] = 0 if is_empty else max(0, self._unread[peer] - num_bytes)

    def end(self, peer: Peer, began: float, now: float) -> None:
        """Take note of a turn."""
        self._took_s[peer.host] += now - began
        if self._took_s[peer.host] > _HOST_S:
            self._unread = {other: left for other, left in self._unread.items() if other.host != peer.host}
        elif self._unread.get(peer) == 0 and not peer.lines:
            del self._unread[peer]
        self._note_all_read()
        self._read_at[peer] = self._host_read_at[peer.host] = now

    def forget(self, peer: Peer) -> None:
        """Take note that a connection was closed."""
        self._unread.pop(peer, None)
        self._read_at.pop(peer, None)
        self._note_all_read()

    def _note_all_read(self) -> None:
        if not self._unread:
            self.read_until = self._looked_at

    def in_turn(self, peers: Collection[Peer]) -> list[Peer]:
        """Return one agent of each host before the second one of any; first those that took the least time since the
        look, and then those that were read longest ago."""
        num_before = Counter[str]()
        turns = []
        for peer in sorted(peers, key=lambda peer: self._read_at.get(peer, 0.0)):
            host = peer.host
            turns.append((num_before[host], self._took_s[host], self._host_read_at.get(host, 0.0), peer))
            num_before[host] += 1
        return [peer for *_, peer in sorted(turns, key=lambda turn: turn[:3])]
