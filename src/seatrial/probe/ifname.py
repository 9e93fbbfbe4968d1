"""The interfaces that NCCL and Gloo choose by ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME``.

The rules are those of NCCL's ``ncclFindInterfaces`` (RCCL has them too) and of torch's ``ProcessGroupGloo``.
"""

from __future__ import annotations

from collections.abc import Collection

from seatrial.probe.network import Interface


def is_set(value: str | None) -> bool:
    """Return whether the libraries use the value: both ignore one of less than two characters."""
    return value is not None and len(value) > 1


def nccl_interfaces(value: str, interfaces: Collection[Interface]) -> tuple[str, ...]:
    """Return the names of the interfaces that NCCL may use; only interfaces that are up count.

    Entries are prefixes of names. A leading ``=`` makes them whole names, and a leading ``^`` excludes the matches.
    """
    excluded = value.startswith("^")
    rest = value[1:] if excluded else value
    exact = rest.startswith("=")
    # An entry may name a port after a colon, which has no meaning for sockets.
    wanted = [entry.partition(":")[0] for entry in (rest[1:] if exact else rest).split(",")]
    wanted = [entry for entry in wanted if entry]

    def matches(name: str) -> bool:
        # An empty list means all.
        return not wanted or any(name == entry if exact else name.startswith(entry) for entry in wanted)

    return tuple(entry.name for entry in interfaces if entry.usable and matches(entry.name) != excluded)


def gloo_interfaces(value: str, interfaces: Collection[Interface]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in the comma-separated list that exist, and those that do not: with the latter, Gloo fails.

    Gloo matches whole names only.
    """
    usable = {interface.name for interface in interfaces if interface.usable}
    wanted = value.removesuffix(",").split(",")
    return tuple(name for name in wanted if name in usable), tuple(name for name in wanted if name not in usable)
