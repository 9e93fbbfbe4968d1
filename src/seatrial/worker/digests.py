"""Comparison of the ranks' parameter digests at the end of a training. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.evidence.statistics import minority

_MOST_RANKS_NAMED = 8


def voters(machines: Sequence[str], local_world_size: int) -> list[str]:
    """Return who has one vote, by rank: a machine, and at least as many neighboring ranks as rank 0's machine has.

    A rank names its machine itself. One host that gives each of its ranks another name would have most of the votes.

    Args:
        machines: by rank, the machine that it says it is on.
        local_world_size: the ranks on the machine of rank 0, as its launcher told it.
    """
    size = max(1, local_world_size)
    own = [rank for rank, machine in enumerate(machines) if machine == machines[0]]
    if len(own) == size and own[-1] != size - 1:  # a launcher that deals ranks out to the hosts in turn
        return list(machines)
    same_as: dict[str, str] = {}

    def voter(machine: str) -> str:
        while machine in same_as:
            machine = same_as[machine]
        return machine

    for rank, machine in enumerate(machines):
        first, other = voter(machines[rank - rank % size]), voter(machine)
        if first != other:
            same_as[other] = first
    return [voter(machine) for machine in machines]


def difference(digests: Sequence[str], machines: Sequence[str]) -> str:
    """Return one sentence that names the ranks with other parameters by majority, or says why it cannot; empty if all
    are equal.

    Each machine has one vote, which its ranks share: one that lies, or errs, is not right more often for more ranks.

    Args:
        digests: one per rank, by rank.
        machines: by rank, the machine that it is on.
    """
    num_sets = len(set(digests))
    if num_sets < 2:
        return ""
    if len(digests) == 2:
        return "rank 0 and rank 1 have different parameters; with two ranks, the wrong one is not separable."
    odd = minority(dict(enumerate(digests)), dict(enumerate(machines))).odd
    if not odd:
        return f"the {len(digests)} ranks have {num_sets} different sets of parameters, and no set has a majority."
    names = ", ".join(str(rank) for rank in odd[:_MOST_RANKS_NAMED]) + (
        " and others" if len(odd) > _MOST_RANKS_NAMED else ""
    )
    one, num_others = len(odd) == 1, len(digests) - len(odd)
    where = "" if num_others > len(odd) else ", which most hosts have"
    return (
        f"{'rank' if one else 'ranks'} {names} {'has' if one else 'have'} other parameters than the"
        f" {num_others} others{where}; replicas must stay equal, so check"
        f" {'its device and the links that lead to it' if one else 'their devices and the links that lead to them'}."
    )
