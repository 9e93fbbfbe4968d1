"""Measurements of the training check by rank. Pure."""

from __future__ import annotations

import math

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Measurement


def by_rank(evidence: Evidence, name: str, *, stage: str = "measure") -> dict[int, Measurement]:
    """Return by rank the last finite measurement of this name; a ``compute_s`` that is not above 0 was not measured."""
    last = {
        measurement.rank: measurement
        for measurement in evidence.measurements
        if (measurement.name, measurement.stage) == (name, stage)
    }
    return {
        rank: last[rank]
        for rank in evidence.ranks
        if rank in last and abs(last[rank].value) < math.inf and (last[rank].value > 0 or name != "compute_s")
    }
