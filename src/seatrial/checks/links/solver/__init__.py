"""The culprit solver: find the nodes, devices and links at fault from measured transfers.

    while (round_ := next_round(observations, topology, limits)) is not None:
        observations = observations plus the results of the round
    diagnosis = solve(observations, topology, limits)

``docs/culprits.md`` explains the method.
"""

from __future__ import annotations

from seatrial.checks.links.solver.records import (
    Diagnosis,
    DirectedLink,
    Direction,
    GroupResult,
    LinkLimits,
    Observations,
    PairResult,
    Round,
    Suspect,
    Topology,
)
from seatrial.checks.links.solver.rounds import next_round
from seatrial.checks.links.solver.solve import solve

__all__ = [
    "Diagnosis",
    "DirectedLink",
    "Direction",
    "GroupResult",
    "LinkLimits",
    "Observations",
    "PairResult",
    "Round",
    "Suspect",
    "Topology",
    "next_round",
    "solve",
]
