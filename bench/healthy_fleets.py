"""How often healthy fleets are blamed, and how often a slow rank is found.

    python bench/healthy_fleets.py bench/results/healthy_fleets.json

Simulated rates go through the judge that the checks use: once for all ranks, and again for the suspects.
"""

from __future__ import annotations

import json
import platform
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seatrial.evidence.fleets import compare_rates
from seatrial.evidence.measurement import Measurement

SEED = 20
NUM_RANKS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, 1024, 32768)
RANKS_PER_ROW = 200_000
MOST_FLEETS = 5_000
FEWEST_FLEETS = 20

Noise = Callable[[random.Random], float]


def normal(sigma: float) -> Noise:
    """A rate around 1."""
    return lambda source: source.gauss(1.0, sigma)


def heavy_tail(scale: float) -> Noise:
    """Student's t with 3 degrees of freedom: one value in 216 lies 6 scales or more below."""

    def draw(source: random.Random) -> float:
        chi = sum(source.gauss(0.0, 1.0) ** 2 for _ in range(3))
        return max(1.0 + scale * source.gauss(0.0, 1.0) / (chi / 3) ** 0.5, 0.05)

    return draw


def spikes(sigma: float, share: float, rate: float) -> Noise:
    """Normal, but for a share of measurements that something disturbed."""
    return lambda source: rate if source.random() < share else source.gauss(1.0, sigma)


NOISES: dict[str, dict[str, Noise]] = {
    "cuda": {
        "normal 1 %": normal(0.01),
        "heavy tail 1 %": heavy_tail(0.01),
        "1 % of measurements 30 % slow": spikes(0.01, 0.01, 0.7),
    },
    "cpu": {
        "normal 5 %": normal(0.05),
        "heavy tail 5 %": heavy_tail(0.05),
        "1 % of measurements 3 times slow": spikes(0.05, 0.01, 1 / 3),
    },
}
SLOW = {"cuda": (0.9, 0.75), "cpu": (0.6, 0.4)}
"""Rates of the one slow rank, of 1."""


def measurements(rates: dict[int, float], stage: str) -> list[Measurement]:
    """As a check would tell them."""
    return [
        Measurement(check="compute", name="tflops", value=value, unit="TFLOP/s", better="high", rank=rank, stage=stage)
        for rank, value in rates.items()
    ]


def judge(
    source: random.Random, noise: Noise, device_type: str, num_ranks: int, slow: float
) -> tuple[set[int], set[int]]:
    """Suspects and findings of one fleet whose rank 0 runs at the rate ``slow``."""

    def draw(rank: int) -> float:
        return noise(source) * (slow if rank == 0 else 1.0)

    first = measurements({rank: draw(rank) for rank in range(num_ranks)}, "measure")
    [fleet] = compare_rates(first, limits=(), device_type=device_type)
    suspects = fleet.suspects()
    # As in the check: the best of three tries.
    again = measurements({rank: max(draw(rank) for _ in range(3)) for rank in suspects}, "repeat")
    [rates] = compare_rates(first + again, limits=(), device_type=device_type)
    outcomes = {rank: rates.outcome(rank).state for rank in suspects}
    missed = {rank for rank, state in outcomes.items() if state not in ("passed", "unjudged")}
    return missed, {rank for rank in missed if outcomes[rank] == "slow"}


def row(device_type: str, name: str, num_ranks: int, slow: float) -> dict[str, Any]:
    """Counts over many fleets of one kind."""
    source = random.Random(f"{SEED} {device_type} {name} {num_ranks} {slow}")
    num_fleets = max(FEWEST_FLEETS, min(MOST_FLEETS, RANKS_PER_ROW // num_ranks))
    blamed = suspected = found = 0
    for _ in range(num_fleets):
        missed, findings = judge(source, NOISES[device_type][name], device_type, num_ranks, slow)
        healthy = findings - {0} if slow < 1 else findings
        suspected += len(missed - {0} if slow < 1 else missed)
        blamed += bool(healthy)
        found += 0 in findings
    told: dict[str, Any] = {
        "device_type": device_type,
        "noise": name,
        "num_ranks": num_ranks,
        "num_fleets": num_fleets,
        "healthy_suspects_per_fleet": round(suspected / num_fleets, 5),
        "fleets_with_a_healthy_rank_blamed": blamed,
    }
    return told if slow == 1 else {**told, "rank_0_runs_at": slow, "fleets_with_rank_0_found": found}


def main(path: str) -> None:
    """Write all rows."""
    kinds = [(device_type, name) for device_type, noises in NOISES.items() for name in noises]
    healthy = [row(device_type, name, n, 1.0) for device_type, name in kinds for n in NUM_RANKS]
    one_slow = [
        row(device_type, name, n, slow)
        for device_type, name in kinds
        for slow in SLOW[device_type]
        for n in (2, 3, 4, 8, 32)
    ]
    document = {
        "command": "python bench/healthy_fleets.py bench/results/healthy_fleets.json",
        "machine": f"simulated, no timing: {platform.machine()}, Python {platform.python_version()}",
        "seed": SEED,
        "healthy": healthy,
        "one_slow": one_slow,
    }
    lines = json.dumps(document).replace('{"device_type"', '\n{"device_type"')
    Path(path).write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
