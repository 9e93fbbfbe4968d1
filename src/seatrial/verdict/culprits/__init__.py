"""The culprit solver: from what pairs, groups and members by themselves reached to who is at fault.

    while (asked := next_round(observations, topology, limits)) is not None:
        observations = observations plus what was measured
    diagnosis = solve(observations, topology, limits)

``docs/culprits.md`` explains the method.
"""

from __future__ import annotations

from seatrial.verdict.culprits.records import (
    Alone,
    Cell,
    Diagnosis,
    Digest,
    Direction,
    GroupResult,
    Limits,
    Named,
    Observations,
    PairResult,
    Phase,
    Round,
    Topology,
)
from seatrial.verdict.culprits.rounds import next_round
from seatrial.verdict.culprits.solve import solve

__all__ = [
    "Alone",
    "Cell",
    "Diagnosis",
    "Digest",
    "Direction",
    "GroupResult",
    "Limits",
    "Named",
    "Observations",
    "PairResult",
    "Phase",
    "Round",
    "Topology",
    "next_round",
    "solve",
]
