"""What ranks say of their shares of a training. Any rank can change a sum over all, and no share of another. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Measurement
from seatrial.util.text import named_ranks

OWN = ("own_counts", "own_loss")
_SHOWN = 16
_MOST = 1e15
"""More samples, or a larger sum of losses, than a training has."""


def is_own_counts(value: Any) -> bool:
    """Return whether a fact tells how many of this rank's test samples were classified correctly."""
    return has_fields(value, correct=int, evaluated=int) and 0 <= value["correct"] <= value["evaluated"] <= _MOST


def is_own_loss(value: Any) -> bool:
    """Return whether a fact tells the loss of this rank's samples at the beginning and the end."""
    names = ("first_sum", "first_samples", "last_sum", "last_samples")
    return has_fields(value, **dict.fromkeys(names, (int, float))) and all(0 <= value[name] <= _MOST for name in names)


def by_rank_own(evidence: Evidence, name: str) -> dict[int, Any]:
    """Return by rank, of those that finished, what it last said of its share under this name."""
    finished = {*evidence.asked}
    return {fact.rank: fact.value for fact in evidence.facts if fact.name == name and fact.rank in finished}


def absent_shares(evidence: Evidence) -> tuple[str, ...]:
    """Return the reports of shares that are missing. Earlier versions have none: a rank that lies takes back no other
    one's."""
    said = {name: by_rank_own(evidence, name) for name in OWN}
    return tuple(
        f"{name} of rank {rank}"
        for rank in evidence.asked
        for name in OWN
        if any(said.values()) and rank not in said[name]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the ranks counted in their own shares, where that contradicts the sums."""

    accuracy: float = math.inf
    """By the shares, where the sums claim a higher one."""
    lines: tuple[str, ...] = ()
    """For the finding; empty: the shares fit the sums."""


def compare_shares(
    evidence: Evidence, num_test: int, accuracy: Mapping[int, Measurement], runs: Mapping[int, Measurement]
) -> Shares:
    """Compare the accuracy that ranks report for all of them, the lowest of their runs, with their own counts.

    The lowest run is no better than the mean of all. Where a rank did not finish, or did other runs, nobody knows how
    large the shares are; that is no PASS.
    """
    everybody = {*evidence.ranks}
    numbers = {runs[rank].value if rank in runs else 0 for rank in everybody}
    own = by_rank_own(evidence, "own_counts")
    if {*evidence.asked} != everybody or len(numbers) != 1 or not own:
        return Shares()
    num_runs, size = max(*numbers, 1), len(everybody)
    sizes = {num_test // size * num_runs, -(-num_test // size) * num_runs}
    wrong = [rank for rank in sorted(own) if own[rank]["evaluated"] not in sizes]
    num_correct = sum(value["correct"] for value in own.values()) / num_runs
    highest = max((measurement.value for measurement in accuracy.values()), default=0.0)
    is_above = own.keys() == everybody and highest * num_test > num_correct + 0.5
    if not wrong and not is_above:
        return Shares()
    shown = [*dict.fromkeys((*wrong, *sorted(own)))][:_SHOWN]
    said = ", ".join(f"rank {rank}: {own[rank]['correct']} of {own[rank]['evaluated']}" for rank in shown)
    lines = [f"correct in its own share: {said}"]
    lines += [f"not of the size of a share: that of {named_ranks(wrong)}"] if wrong else []
    return Shares(accuracy=num_correct / max(num_test, 1) if is_above else math.inf, lines=tuple(lines))


def falls_on(evidence: Evidence) -> tuple[int, int] | None:
    """Return on how many hosts the loss of their samples falls, and how many had samples at the beginning and at
    the end; None where no host had."""
    hosts = evidence.hosts()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for rank, value in by_rank_own(evidence, "own_loss").items():
        for name in ("first_sum", "first_samples", "last_sum", "last_samples"):
            sums[hosts[rank]][name] += value[name]
    voters = [of for of in sums.values() if of["first_samples"] and of["last_samples"]]
    falling = [of for of in voters if of["last_sum"] / of["last_samples"] < of["first_sum"] / of["first_samples"]]
    return (len(falling), len(voters)) if voters else None
