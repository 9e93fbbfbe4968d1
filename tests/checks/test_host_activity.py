"""Lines about other activity on the host and GPU of a slow rank, for readings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from checks.test_check_compute import ONE, evidence

from seatrial.checks.compute import CHECK
from seatrial.checks.shared.host_activity import activity_lines, load_of_others
from seatrial.checks.training.judge_held_up import held_up
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact
from seatrial.probe.gpu_gauges import REASONS

CALM = {"wall_s": 10.0, "cpu_s": 4.0, "busy_s": 4.5, "mhz": 2500.0}
GPU = {"gpu_mhz": 1980.0, "gpu_celsius": 60.0, "gpu_limit_w": 700.0, "gpu_processes": 1.0}
GPU |= {**dict.fromkeys(REASONS.values(), 0.0), "gpu_power_cap": 0.4}


def contention(*ranks: dict[str, float], stage: str = "measure") -> tuple[Fact, ...]:
    """Return these readings by rank, with calm values for all others."""
    values = [{**CALM, **readings} for readings in ranks]
    return tuple(
        Fact(check="compute", name="contention", value=value, rank=rank, stage=stage)
        for rank, value in enumerate(values)
    )


def gpu_evidence(*ranks: dict[str, float]) -> Evidence:
    return evidence([700.0] * len(ranks), facts=contention(*({**GPU, **readings} for readings in ranks)))


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        ({"gpu_mhz": 1200.0}, "during the group run its GPU ran at 1200 MHz (rank 0 on node n0: 1980)"),
        (
            {"gpu_hw_thermal": 0.7},
            "during the group run its GPU was too hot (HW thermal slowdown) 70 % of the time (rank 0 on node n0: 0 %)",
        ),
        (
            {"gpu_power_cap": 0.9},
            "during the group run its GPU was at its power limit (SW power cap) 90 % of the time (rank 0 on node n0",
        ),
        ({"gpu_celsius": 88.0}, "during the group run its GPU reached 88 degrees Celsius (rank 0 on node n0: 60)"),
        (
            {"gpu_limit_w": 300.0},
            "during the group run the power of its GPU is limited to 300 W (rank 0 on node n0: 700 W)",
        ),
        ({"gpu_processes": 2.0}, "during the group run 2 processes computed on its GPU (rank 0 on node n0: 1)"),
    ],
)
def test_an_outlier_on_the_gpu_is_compared_with_the_other_rank(reading: dict[str, float], line: str) -> None:
    (text,) = activity_lines(gpu_evidence({}, reading))(1, 0)
    assert text.startswith(line)


@pytest.mark.parametrize(("waited_s", "other_waited_s"), [(24.0, 24.0), (4.0, 3.0), (1.0, 4.0)])
def test_a_load_of_both_ranks_is_said_and_never_denied(waited_s: float, other_waited_s: float) -> None:
    """A finding that gives the load as its reason must not say below that no other activity explains it."""
    facts = contention({"waited_s": other_waited_s}, {"waited_s": waited_s}, stage="repeat")
    lines = activity_lines(evidence([700.0, 700.0], facts=facts))(1, 0)
    assert not any("no other activity" in line for line in lines)


def test_the_load_of_both_ranks_has_both_shares() -> None:
    facts = contention({"waited_s": 24.0}, {"waited_s": 16.0})
    (line,) = activity_lines(evidence([700.0, 700.0], facts=facts))(1, 0)
    assert line == (
        "during the group run others on its cores kept 80 % of the CPU time that it could have used,"
        " and 86 % from rank 0 on node n0"
    )


@pytest.mark.parametrize(
    "reading",
    [{}, {"gpu_mhz": 1965.0}, {"gpu_power_cap": 0.7}, {"gpu_celsius": 69.0}, {"gpu_limit_w": 800.0}],
)
def test_usual_readings_explain_nothing(reading: dict[str, float]) -> None:
    (text,) = activity_lines(gpu_evidence({}, reading))(1, 0)
    assert text.startswith("during the group run no other activity on the host explains it")
    assert text.endswith(", clock of its GPU, reasons for a lower clock, its temperature, its power limit)")


def test_a_gauge_that_one_rank_lacks_is_not_compared() -> None:
    facts = (
        Fact(check="compute", name="contention", value={**CALM, **GPU}, rank=0),
        Fact(check="compute", name="contention", value={**CALM, "gpu_mhz": 1980.0}, rank=1),
        Fact(check="compute", name="contention", value=CALM, rank=2),
    )
    whole = evidence([700.0] * 3, facts=facts)
    for rank, other in ((0, 1), (1, 0), (0, 2)):
        (text,) = activity_lines(whole)(rank, other)
        assert "no other activity on the host explains it" in text
        assert ("GPU" in text, "temperature" in text) == (2 not in (rank, other), False)


def test_compute_reports_the_activity_of_a_slow_device() -> None:
    calm: list[dict[str, float]] = [{}] * 5
    hot = [*calm[:2], {"gpu_mhz": 900.0, "gpu_hw_thermal": 1.0}, *calm[3:]]
    facts = (*gpu_evidence(*hot).facts, *contention(GPU, GPU, {**GPU, "gpu_mhz": 910.0}, stage="repeat"))
    (finding,) = CHECK.judge(evidence([700.0, 701, 500, 702, 699], {0: 700, 1: 701, 2: 505}, facts=facts), ONE).findings
    assert finding.culprit.ranks == (2,)
    assert "during the group run its GPU ran at 900 MHz (rank 0 on node n0: 1980)" in finding.evidence
    assert any("too hot (HW thermal slowdown) 100 %" in line for line in finding.evidence)
    assert "alone its GPU ran at 910 MHz (rank 0 on node n0: 1980)" in finding.evidence


JUNK: list[Any] = [None, [], {}, "x", 0, {"wall_s": 0.0, "cpu_s": 1.0}, {**CALM, "mhz": "x"}, {**CALM, "mhz": -1.0}]
JUNK += [{"wall_s": 10.0}, {**CALM, "waited_s": float("nan")}, {**CALM, "waited_s": 10**400}, {**CALM, "cpu_s": None}]


@pytest.mark.parametrize("value", JUNK)
def test_counters_of_another_form_end_no_judge(value: Any) -> None:
    """Those of one rank would hide what is known of all others."""
    facts = tuple(
        Fact(check="compute", name="contention", value=each, rank=rank, stage=stage)
        for stage in ("measure", "repeat")
        for rank, each in ((0, CALM), (3, value))
    )
    slow = evidence([700.0, 700.0, 700.0, 200.0], {0: 700.0, 1: 700.0, 3: 200.0}, wrong={2: 5}, facts=facts)
    found = [(finding.severity, finding.culprit.ranks) for finding in CHECK.judge(slow, ONE).findings]
    assert found == [("fail", (2,)), ("fail", (3,))]
    assert activity_lines(slow)(3, 0) == activity_lines(slow)(0, 3) == ()
    assert load_of_others(slow) == ""
    assert held_up(slow, "throttled_s") == {}
