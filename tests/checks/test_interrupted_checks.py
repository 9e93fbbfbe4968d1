"""Reports of a long check before its end, and the ruling when it does not end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch.distributed
from checks.fake_context import FakeContext
from checks.simulated_training import SMOKE, trained
from checks.test_check_compute import ONE, evidence

from seatrial.checks import collectives, compute, training
from seatrial.checks.collectives import measure as collectives_measure
from seatrial.checks.compute import measure as compute_measure
from seatrial.checks.shared import rounds
from seatrial.checks.shared.facts import latest
from seatrial.evidence.measurement import Fact, Measurement

WRONG = Fact(check="compute", name="wrong_values", value={"dtype": "bf16", "round": 7, "count": 5}, rank=1)


def digest(runs: int, rank: int, digest: str) -> Fact:
    return Fact(check="training", name="digest", value={"runs": runs, "digest": digest}, rank=rank)


def test_the_latest_report_of_the_same_measurement_counts() -> None:
    first = Measurement(check="compute", name="tflops", value=1.0, unit="TFLOP/s", rank=0, variant="fp32")
    others = [replace(first, rank=1), replace(first, variant="bf16"), replace(first, stage="repeat")]
    others += [replace(first, step=0), replace(first, size_bytes=8), replace(first, peer=1)]
    last = replace(first, value=2.0)
    assert latest([first, *others, last]) == (last, *others)


def test_compute_reports_after_each_long_round(monkeypatch: pytest.MonkeyPatch) -> None:
    params = compute.params.Params(cpu_size=64, cpu_dtypes=("fp32",), seconds=0.001, rounds=3)
    for every_s, times in ((0.0, 3), (60.0, 1)):
        monkeypatch.setattr(rounds, "REPORT_EVERY_S", every_s)
        context = FakeContext(check="compute")
        compute_measure.measure(context, params)
        names = ["tflops", "cpu_share", "wrong_elements", "wrong_elements"]
        assert [measurement.name for measurement in context.measurements] == names * times


def test_collectives_report_after_each_long_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_in_no_time(context: Any, max_repeats: int, operation: str, size: int, number: int) -> Any:
        return 1e-3 * (number + 1), {"count": 1} if operation == "all_gather" and number == 1 else {}

    monkeypatch.setattr(collectives_measure, "_run", run_in_no_time)
    monkeypatch.setattr(rounds, "REPORT_EVERY_S", 0.0)
    store = torch.distributed.HashStore()
    context = FakeContext(check="collectives", world_size=2, ranks=(0, 1), store=store)
    collectives_measure.measure(context, collectives.params.Params(cpu_sizes=(8, 4096), rounds=3))
    series = [
        measurement.value
        for measurement in context.measurements
        if (measurement.name, measurement.variant) == ("time_us", "barrier")
    ]
    assert series == pytest.approx([1e3, 1.5e3, 2e3])
    wrong = [
        measurement.value
        for measurement in context.measurements
        if (measurement.name, measurement.variant) == ("wrong_elements", "all_gather")
    ]
    assert wrong == [0, 2, 2], "of both sizes, in the second round"


@pytest.mark.parametrize("asked", [(), (0, 2), (0, 1, 2)])
def test_wrong_bits_fail_their_device_whatever_came_later(asked: tuple[int, ...]) -> None:
    # The measurement of an earlier round says that all was right until then.
    for measurements in (evidence([700, 701, 702]).measurements, ()):
        seen = replace(evidence([700, 701, 702]), asked=asked, measurements=measurements, facts=(WRONG,))
        (finding,) = compute.CHECK.judge(seen, ONE).findings
        assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (1,))
        assert finding.measured == ("5 wrong elements" if 1 in asked else "at least 5 wrong elements")


def test_a_speed_that_was_reported_twice_is_judged_once() -> None:
    slow_at_first = evidence([300, 701, 702])
    measurements = (*slow_at_first.measurements, *evidence([700, 701, 702]).measurements)
    ruling = compute.CHECK.judge(replace(slow_at_first, measurements=measurements), ONE)
    assert (ruling.findings, ruling.absent, len(ruling.judged)) == ((), (), 9)


def test_replicas_that_did_not_finish_are_compared_run_by_run() -> None:
    whole = trained(3)
    measurements = tuple(measurement for measurement in whole.measurements if measurement.name != "digest")
    unfinished = replace(whole, asked=(), measurements=measurements)
    # Rank 2 reported fewer runs before all were stopped: no other rank has a digest to compare.
    fair = (
        whole.facts[0],
        digest(5, 0, "aa"),
        digest(5, 1, "aa"),
        digest(5, 2, "aa"),
        digest(9, 0, "bb"),
        digest(9, 1, "bb"),
    )
    assert training.CHECK.judge(replace(unfinished, facts=fair), SMOKE).findings == ()
    apart = (*fair, digest(7, 0, "cc"), digest(7, 1, "dd"), digest(7, 2, "cc"))
    (finding,) = training.CHECK.judge(replace(unfinished, facts=apart), SMOKE).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_counts_of_different_numbers_of_runs_are_not_compared() -> None:
    whole = trained(2)
    later = tuple(
        replace(measurement, value={"accuracy": 0.94, "evaluated": 3600.0}.get(measurement.name, measurement.value))
        if measurement.rank == 1
        else measurement
        for measurement in whole.measurements
    )
    assert training.CHECK.judge(replace(whole, asked=(), measurements=later), SMOKE).findings == ()
    assert training.CHECK.judge(replace(whole, measurements=later), SMOKE).findings != ()
