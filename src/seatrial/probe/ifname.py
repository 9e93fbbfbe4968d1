"""Which interfaces NCCL and Gloo take by ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME``.

The rules are those of NCCL's ``ncclFindInterfaces`` (RCCL has them too) and of torch's ``ProcessGroupGloo``.
"""

from __future__ import annotations

from collections.abc import Collection

from seatrial.probe.network import Interface

__all__ = ["gloo_interfaces", "is_set", "nccl_interfaces"]


def is_set(value: str | None) -> bool:
    """Both libraries pass over a value of less than two characters."""
    return value is not None and len(value) > 1


def nccl_interfaces(value: str, interfaces: Collection[Interface]) -> tuple[str, ...]:
    """Names of those that NCCL may use: entries are beginnings of names; ``=`` before the first: whole names; ``^``
    before all: not those. Only interfaces that are up count.
    """
    without = value.startswith("^")
    rest = value[1:] if without else value
    exact = rest.startswith("=")
    # An entry may name a port after a colon, which has no meaning for sockets.
    wanted = [entry.partition(":")[0] for entry in (rest[1:] if exact else rest).split(",")]
    wanted = [entry for entry in wanted if entry]

    def fits(name: str) -> bool:
        # An empty list stands for all.
        return not wanted or any(name == entry if exact else name.startswith(entry) for entry in wanted)

    return tuple(each.name for each in interfaces if each.usable and fits(each.name) != without)


def gloo_interfaces(value: str, interfaces: Collection[Interface]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the comma list that are there, and those that are not: of these Gloo fails. Whole names only."""
    there = {each.name for each in interfaces if each.usable}
    wanted = value.removesuffix(",").split(",")
    return tuple(name for name in wanted if name in there), tuple(name for name in wanted if name not in there)
