"""The interface between the server and the conductor that it drives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from seatrial.protocol.commands import AgentCommand
from seatrial.protocol.events import Event


@dataclass(slots=True)
class Actions:
    """The conductor's answer to one call: what the server has to do now."""

    send: list[tuple[int, AgentCommand]] = field(default_factory=list)
    """(node, command), in the order of sending."""
    events: list[Event] = field(default_factory=list)
    """Events of the conductor, in the order of recording."""
    over: bool = False
    """The run is over."""


class Conductor(Protocol):
    """A state machine without socket, clock or file: every call passes the time (monotonic seconds)."""

    def join(self, node: int, now: float, place: str = "") -> Actions:
        """Take in an agent that proved that it knows the token. ``place``: as of ``node_addresses.place_of``."""

    def message(self, node: int, message: dict[str, Any], now: float) -> Actions:
        """Take in a message or an event of a node that joined.

        Raises KeyError, TypeError, ValueError or AttributeError for a malformed message, which has no effect, and
        OriginError for a message in the name of another node or rank, and NumberError for an event out of order, which
        must not be recorded either.
        """

    def lost(self, node: int, detail: str, now: float) -> Actions:
        """Take note that the connection of a node is closed, or that its agent ended. ``detail``: how."""

    def interrupt(self, by: str, now: float) -> Actions:
        """End the run early. ``by``: name of the signal, or the reason."""

    def paused(self, missed_s: float) -> None:
        """Take note, before anything that came meanwhile, that this process did not run for so long."""

    def tick(self, now: float, read_until: float) -> Actions:
        """Act on the time that has passed. ``read_until``: all that had arrived by then was taken in; later words
        may lie unread, so that nobody is late by a later time."""
