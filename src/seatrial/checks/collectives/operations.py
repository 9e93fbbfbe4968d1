"""The collective operations: their sizes and factors, and the values that each rank contributes and must receive."""

from __future__ import annotations

import math
from typing import Any

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier")
DIRECT = ("all_to_all", "send_recv")
"""Operations in which each block goes from its contributor to its receiver, and no other rank forwards it."""
_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations with a block per rank. The size of the full array is rounded up to whole elements per rank."""
_REDUCING = ("all_reduce", "reduce_scatter")
"""Operations that sum: a wrong sum does not show whose contribution was wrong."""
ELEMENT_BYTES = 4
"""Bytes of a float32 element."""


def busbw_factor(operation: str, world_size: int) -> float:
    """Return busbw / algbw, the share of the full array that each link must carry (nccl-tests, doc/PERFORMANCE.md)."""
    others = (world_size - 1) / world_size
    return 2 * others if operation == "all_reduce" else others if operation in _DIVIDED else 1.0


def busbw_gbps(size_bytes: int, time_us: float | None, world_size: int) -> float:
    """Return the bus bandwidth (GB/s) of an all_reduce that takes so long; NaN without a time."""
    if not time_us or not 0 < time_us < math.inf:
        return math.nan
    return size_bytes * busbw_factor("all_reduce", world_size) / (time_us * 1e3)


def array_sizes(operation: str, wanted: tuple[int, ...], world_size: int) -> tuple[int, ...]:
    """Return the sizes in bytes, rounded up where every rank has a block; a barrier has the size 0."""
    if operation == "barrier":
        return (0,)
    unit = ELEMENT_BYTES * (world_size if operation in _DIVIDED else 1)
    return tuple(dict.fromkeys(-(-size // unit) * unit for size in wanted))


def root_of(world_size: int, size: int, number: int) -> int:
    """Return the group rank that broadcasts: a different one for each size and round."""
    return (size.bit_length() + number) % world_size


def contribution(
    operation: str, world_size: int, group_rank: int, size: int, number: int, index: Any, *, received: bool
) -> tuple[Any, Any]:
    """Return the values that a rank contributes, or must receive, at these indexes, and the group ranks they come from.

    All values are integers below 2**24, and so are all partial sums: exact in float32 in any order. A moved value
    encodes its contributor and, up to a period that no block size divides, its index and receiver.

    Args:
        operation: One of ``OPERATIONS`` but the barrier.
        world_size: Ranks of the group.
        group_rank: The rank that contributes or receives.
        size: Bytes of the full array.
        number: The round, which changes the values.
        index: Elements of the array, int64 tensor.
        received: Whether the values are those to receive.

    Returns:
        Values, and contributors (None for sums); each a tensor or a number that broadcasts with ``index``.
    """
    block = size // ELEMENT_BYTES // world_size
    if operation in _REDUCING:
        element = index + number + (group_rank * block if received and operation == "reduce_scatter" else 0)
        weight = sum(rank % 31 + 1 for rank in range(world_size)) if received else group_rank % 31 + 1
        return weight * (element % 11 + 1), None
    sender, target, element = group_rank, 0, index
    if operation == "all_to_all" or (operation == "all_gather" and received):
        other, element = index // block, index % block
        sender = other if received else group_rank
        target = 0 if operation == "all_gather" else group_rank if received else other
    elif received:
        sender = root_of(world_size, size, number) if operation == "broadcast" else (group_rank - 1) % world_size
    period = min(4093, 2**24 // world_size)
    return sender * period + (element + target + number) % period, sender
