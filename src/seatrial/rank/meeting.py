"""Errors of ranks that meet: false answers of the store, or of another rank, that end as exceptions here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from seatrial.protocol.own_errors import is_of_device, lacks_processes, may_be_of_others, own_cause


class MeetingError(RuntimeError):
    """What the store or another rank answered cannot be used. Any rank can write there, so it tells nothing of one.

    Its text may quote such an answer, so nothing looks for words in it.
    """


class UnmetError(MeetingError):
    """Two ranks did not meet. That accuses none of them: a third one may keep a rank away, or its page from readers."""

    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        """``unreachable``: no connection to the other rank could be made, which is a fault if both say so."""
        super().__init__(text)
        self.unreachable = unreachable


class Member(Protocol):
    """A rank that meets others."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def local_world_size(self) -> int:
        """Number of ranks on its node."""


@contextlib.contextmanager
def among_others(member: Member) -> Iterator[None]:
    """Raise MeetingError for the exceptions of torch that false answers end in, such as a length that no memory holds.

    Errors with a class that says more stay as they are, and what torch says of this rank itself, also that it got no
    thread; among ranks of one node so does a lack of memory or descriptors. Where ranks of other nodes meet, whoever
    connects may have taken those.
    """
    try:
        yield
    except (IndexError, MemoryError, OverflowError, RuntimeError, ValueError) as error:
        is_alone = member.local_world_size == member.world_size
        text = str(error)
        is_own = is_of_device([text]) or own_cause(text) == "request" or lacks_processes(text)
        is_plain = type(error) is RuntimeError and not is_own
        if is_plain or (isinstance(error, RuntimeError) and may_be_of_others(text) and not is_alone):
            raise MeetingError(text) from error
        if isinstance(error, RuntimeError) or (isinstance(error, MemoryError) and is_alone):
            raise
        raise MeetingError(f"an answer that cannot be used: {error or type(error).__name__}") from error
