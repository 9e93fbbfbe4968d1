"""The collective operations: their sizes and factors, what each rank gives and what it must receive."""

from __future__ import annotations

from typing import Any

__all__ = ["ELEMENT_BYTES", "OPERATIONS", "array_sizes", "busbw_factor", "contribution", "root_of"]

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier")
_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
"""One block of the array per rank: S is the full array, rounded up to whole elements per rank."""
_REDUCING = ("all_reduce", "reduce_scatter")
"""A wrong sum does not tell whose contribution was wrong."""
ELEMENT_BYTES = 4


def busbw_factor(operation: str, world_size: int) -> float:
    """busbw / algbw: what each link must carry of the full array."""
    others = (world_size - 1) / world_size
    return 2 * others if operation == "all_reduce" else others if operation in _DIVIDED else 1.0


def array_sizes(operation: str, wanted: tuple[int, ...], world_size: int) -> tuple[int, ...]:
    """Bytes, rounded up where every rank has a block; a barrier has none."""
    if operation == "barrier":
        return (0,)
    unit = ELEMENT_BYTES * (world_size if operation in _DIVIDED else 1)
    return tuple(dict.fromkeys(-(-size // unit) * unit for size in wanted))


def root_of(world_size: int, size: int, turn: int) -> int:
    """Who broadcasts: another rank with each size and round."""
    return (size.bit_length() + turn) % world_size


def contribution(
    operation: str, world_size: int, me: int, size: int, turn: int, index: Any, *, received: bool
) -> tuple[Any, Any]:
    """What this rank contributes at these places, or what it must receive there; and whose contribution that is.

    All are integers below 2**24, and so are all sums on the way: exact in float32 in any order. What is moved says
    who contributed it and, but for a period that no block size divides by, where and for whom.
    """
    block = size // ELEMENT_BYTES // world_size
    if operation in _REDUCING:
        place = index + turn + (me * block if received and operation == "reduce_scatter" else 0)
        weight = sum(rank % 31 + 1 for rank in range(world_size)) if received else me % 31 + 1
        return weight * (place % 11 + 1), None
    sender, target, element = me, 0, index
    if operation == "all_to_all" or (operation == "all_gather" and received):
        other, element = index // block, index % block
        sender = other if received else me
        target = 0 if operation == "all_gather" else me if received else other
    elif received:
        sender = root_of(world_size, size, turn) if operation == "broadcast" else (me - 1) % world_size
    period = min(4093, 2**24 // world_size)
    return sender * period + (element + target + turn) % period, sender
