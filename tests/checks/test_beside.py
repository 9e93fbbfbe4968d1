"""What is said beside a slow rank, of its host and of its GPU, by readings made by hand."""

from __future__ import annotations

import pytest
from checks.test_check_compute import ONE, evidence

from seatrial.checks._beside import beside
from seatrial.checks.compute import CHECK
from seatrial.probe import own_code
from seatrial.probe.gpu_gauges import REASONS
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact

CALM = {"wall_s": 10.0, "cpu_s": 4.0, "busy_s": 4.5, "mhz": 2500.0}
GPU = {"gpu_mhz": 1980.0, "gpu_celsius": 60.0, "gpu_limit_w": 700.0, "gpu_processes": 1.0}
GPU |= {**dict.fromkeys(REASONS.values(), 0.0), "gpu_power_cap": 0.4}


def seen(*ranks: dict[str, float], stage: str = "measure") -> tuple[Fact, ...]:
    """Each rank's readings are these, and calm else."""
    told = [{**CALM, **each} for each in ranks]
    return tuple(
        Fact(check="compute", name="contention", value=value, rank=rank, stage=stage) for rank, value in enumerate(told)
    )


def of_gpu(*ranks: dict[str, float]) -> Evidence:
    return evidence([700.0] * len(ranks), facts=seen(*({**GPU, **each} for each in ranks)))


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        ({"gpu_mhz": 1200.0}, "in the group its GPU ran at 1200 MHz (rank 0: 1980)"),
        (
            {"gpu_hw_thermal": 0.7},
            "in the group its GPU was too hot (HW thermal slowdown) 70 % of the time (rank 0: 0 %)",
        ),
        (
            {"gpu_power_cap": 0.9},
            "in the group its GPU was at its power limit (SW power cap) 90 % of the time (rank 0: 40",
        ),
        ({"gpu_celsius": 88.0}, "in the group its GPU reached 88 degrees Celsius (rank 0: 60)"),
        ({"gpu_limit_w": 300.0}, "in the group the power of its GPU is limited to 300 W (rank 0: 700 W)"),
        ({"gpu_processes": 2.0}, "in the group 2 processes computed on its GPU (rank 0: 1)"),
    ],
)
def test_what_stands_out_on_its_gpu_is_told_with_what_another_has(reading: dict[str, float], line: str) -> None:
    (told,) = beside(of_gpu({}, reading), 1, 0)
    assert told.startswith(line)


@pytest.mark.parametrize(
    "reading",
    [{}, {"gpu_mhz": 1965.0}, {"gpu_power_cap": 0.7}, {"gpu_celsius": 69.0}, {"gpu_limit_w": 800.0}],
)
def test_what_is_usual_does_not_stand_out_and_that_is_said(reading: dict[str, float]) -> None:
    (told,) = beside(of_gpu({}, reading), 1, 0)
    assert told.startswith("in the group nothing beside it stands out")
    assert told.endswith(", clock of its GPU, what held that down, its temperature, its power limit")


def test_a_gauge_that_one_of_them_lacks_is_not_compared() -> None:
    facts = (
        Fact(check="compute", name="contention", value={**CALM, **GPU}, rank=0),
        Fact(check="compute", name="contention", value={**CALM, "gpu_mhz": 1980.0}, rank=1),
        Fact(check="compute", name="contention", value=CALM, rank=2),
    )
    whole = evidence([700.0] * 3, facts=facts)
    for rank, other in ((0, 1), (1, 0), (0, 2)):
        (told,) = beside(whole, rank, other)
        assert "nothing beside it stands out" in told
        assert ("GPU" in told, "temperature" in told) == (2 not in (rank, other), False)


def test_compute_says_what_was_seen_beside_a_slow_device() -> None:
    calm: list[dict[str, float]] = [{}] * 5
    hot = [*calm[:2], {"gpu_mhz": 900.0, "gpu_hw_thermal": 1.0}, *calm[3:]]
    facts = (*of_gpu(*hot).facts, *seen(GPU, GPU, {**GPU, "gpu_mhz": 910.0}, stage="repeat"))
    (finding,) = CHECK.judge(evidence([700.0, 701, 500, 702, 699], {0: 700, 2: 505}, facts=facts), ONE).findings
    assert finding.culprit.ranks == (2,)
    assert "in the group its GPU ran at 900 MHz (rank 0: 1980)" in finding.evidence
    assert any("too hot (HW thermal slowdown) 100 %" in line for line in finding.evidence)
    assert "alone its GPU ran at 910 MHz (rank 0: 1980)" in finding.evidence


def test_there_is_no_room_for_it_in_the_file_that_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "is_whole", lambda: False)
    assert beside(of_gpu({}, {"gpu_mhz": 1200.0}), 1, 0) == ()
