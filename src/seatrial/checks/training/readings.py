"""Measurements of the training check by rank. Pure."""

from __future__ import annotations

import math

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Measurement

LEAST_COMPUTE_S = 1e-5
"""A forward and backward pass calls tens of operations of torch, and each call takes a microsecond or more."""


def by_rank(evidence: Evidence, name: str, *, stage: str = "measure") -> dict[int, Measurement]:
    """Return by rank the last finite measurement of this name; without a ``compute_s`` below ``LEAST_COMPUTE_S``."""
    last = {
        measurement.rank: measurement
        for measurement in evidence.measurements
        if (measurement.name, measurement.stage) == (name, stage)
    }
    return {
        rank: last[rank]
        for rank in evidence.ranks
        if rank in last
        and abs(last[rank].value) < math.inf
        and (last[rank].value >= LEAST_COMPUTE_S or name != "compute_s")
    }
