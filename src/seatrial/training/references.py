"""Reference accuracies: what a recipe reaches on healthy hardware, measured once over many seeds and shipped.

``references.json`` is written by ``bench/reference_runs.py``; the runs behind it are in ``bench/results``.
"""

from __future__ import annotations

import functools
import json
import math
import pkgutil
from dataclasses import dataclass
from statistics import NormalDist

from seatrial.errors import SeatrialError

_FALSE_ALARM = NormalDist().cdf(-3.0)
"""Probability that a healthy trial misses the limit by chance: that of 3 sigma, 0.00135."""
_FILE = "references.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The final accuracy of one recipe over many seeds."""

    mean: float
    sigma: float
    """Standard deviation over the seeds."""
    num_seeds: int
    num_test: int
    """Number of test samples behind each accuracy."""

    def spread(self) -> float:
        """Return ``sigma``, but at least the resolution of a test set of this size: sqrt(p (1 - p) / n), and one
        sample.

        Other devices and libraries round differently, which a few seeds on one machine do not show.
        """
        return max(self.sigma, math.sqrt(self.mean * (1 - self.mean) / self.num_test), 1 / self.num_test)

    def limit(self, num_runs: int) -> float:
        """Return the accuracy that the worst of ``num_runs`` runs must reach: mean - 3 spreads for one run.

        Among many healthy runs one is likely to lie beyond 3 sigma, so the distance grows until the chance of a false
        alarm over all of them is that of one run (Bonferroni).
        """
        return self.mean + NormalDist().inv_cdf(_FALSE_ALARM / num_runs) * self.spread()


def find_reference(key: str) -> Reference | None:
    """Return the reference of a recipe, None if there is none. Raises SeatrialError when the file is missing."""
    row = _rows().get(key)
    if row is None:
        return None
    return Reference(
        mean=float(row["mean"]), sigma=float(row["sigma"]), num_seeds=int(row["seeds"]), num_test=int(row["num_test"])
    )


@functools.cache
def _rows() -> dict[str, dict[str, float]]:
    # pkgutil asks the loader, so the file is also found inside a zip.
    try:
        text = pkgutil.get_data(__package__, _FILE)
    except OSError:
        text = None
    if text is None:
        raise SeatrialError(f"seatrial/training/{_FILE} is missing from this installation; install seatrial again.")
    rows: dict[str, dict[str, float]] = json.loads(text)
    return rows
