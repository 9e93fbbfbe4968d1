"""The store of ranks that meet: each sets its keys on its own page, and gets those of the others from their pages.

So torch forms a group from what its ranks say, and nobody can answer for another one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from seatrial.rank.meeting import UnmetError
from seatrial.rank.word_page import PeerPage, WordPage

_ON_TIME_S = 0.1
"""The time for a key of a peer that is not late: a page is read as often as that meanwhile."""
_CHECK_S = 1.0
"""Seconds for the question whether a key is set, which a thread of NCCL asks from time to time."""


class PageStore(dist.Store):
    """The keys of one meeting. Torch does not keep this object alive: its maker does.

    Calls that count or change a key need one place for all, which there is not: torch raises for these.
    """

    def __init__(self, page: WordPage, peers: Sequence[PeerPage | None], name: str, patience_s: float) -> None:
        """Make the store of a group.

        Args:
            page: The page of this rank.
            peers: The page of each rank of the group; None: this rank.
            name: What the keys of the meeting begin with.
            patience_s: Time for each key of another rank.
        """
        super().__init__()
        self._page, self._peers, self._name, self._patience_s = page, peers, name, patience_s
        self._read = dict[str, bytes]()
        """Keys of others: a word counts as it was read first."""
        self.unmet = ""
        """Why a key of another rank could not be read: NCCL raises another error then."""

    @property
    def late_s(self) -> float:
        """The time by which this rank may have read the keys of others late.

        Of hundreds of peers, each takes some milliseconds, none of which is late.
        """
        return sum(peer.late_s for peer in self._peers if peer is not None and peer.late_s > _ON_TIME_S)

    @property
    def held_s(self) -> float:
        """The part of ``late_s`` for which the host of this rank may be the reason."""
        return sum(peer.held_s for peer in self._peers if peer is not None)

    def set(self, key: str, value: Any) -> None:
        """Set a key, for others to read."""
        self._page.say(self._name + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as it is set. Raises UnmetError."""
        own = self._page.said(self._name + key)
        if own is not None:
            return own
        if key not in self._read:
            setter = self._setter(key)
            try:
                if setter is None:
                    raise UnmetError(f"this rank has not set {key}")
                self._read[key] = setter.word(self._name + key, time.monotonic() + self._patience_s)
            except UnmetError as error:
                self.unmet = str(error)
                raise
        return self._read[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set. The patience of the meeting counts, so that a busy rank has time to come."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set now."""
        return all(map(self._has, keys))

    def _has(self, key: str) -> bool:
        name, setter = self._name + key, self._setter(key)
        if key in self._read or self._page.said(name) is not None:
            return True
        return setter is not None and name in setter.read(time.monotonic() + _CHECK_S)

    def _setter(self, key: str) -> PeerPage | None:
        """Return the page of the rank that sets a key; None: that is this rank.

        Gloo's keys end in its number. NCCL has ``//0``, the number of a communicator, of the first rank, and ``1:3`` of
        the lower one of two that send.
        """
        place, _, number = key.rpartition("/")
        lower, colon, _ = number.partition(":")
        is_rank = lower.isdecimal() and (colon or not place.endswith("/"))
        return self._peers[int(lower) % len(self._peers)] if is_rank else self._peers[0]
