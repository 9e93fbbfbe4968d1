"""Where a launcher or the cluster says that a node is."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.errors import SeatrialError


class HostOfNode(NamedTuple):
    """The host of one node, as a launcher or the cluster gives it."""

    address: str
    """Its address, or a name that has one."""
    name: str = ""
    """The name that the commands of the launcher take; empty where there is none."""


class HostsMissingError(SeatrialError):
    """A launcher does not know what it has started, unless that has ended by now."""
