"""The judge of the bootstrap: the time of forming the world, where one rank or all say that it was long."""

from __future__ import annotations

import pytest

from seatrial.checks import bootstrap
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact, Measurement


def formed(*seconds: float) -> Ruling:
    """Judge what each rank reports; each is on a host of its own."""
    ranks = {
        rank: RankRecord(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device="CPU", kind="CPU")
        for rank in range(len(seconds))
    }
    measurements = tuple(
        Measurement(check="bootstrap", name="form_s", value=value, unit="s", rank=rank)
        for rank, value in enumerate(seconds)
    )
    evidence = Evidence(ranks=ranks, asked=tuple(ranks), measurements=measurements, facts=())
    return bootstrap.judge(evidence, bootstrap.Params(max_form_s=30))


@pytest.mark.parametrize("seconds", [(40.0,), (40.0, 1.0), (40.0, 50.0, 1.0)])
def test_a_long_time_on_half_of_the_hosts_fails_and_names_who_reports_it(seconds: tuple[float, ...]) -> None:
    ruling = formed(*seconds)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind, ruling.absent) == ("fail", "none", ())
    assert finding.evidence == (f"reported by rank{'s 0, 1' if len(seconds) == 3 else ' 0'}",)


def test_a_long_time_that_few_hosts_report_is_no_failure_and_names_them() -> None:
    ruling = formed(1.0, 1.0, 1e6)
    assert ruling.findings == ()
    assert ruling.absent == ("a time to form the world that most hosts report: rank 2 reports 1e+06 s",)
    assert all(entry.passed for entry in ruling.judged)


def test_where_the_tensors_of_mpi_are_is_in_words_of_ours() -> None:
    facts = tuple(
        Fact(check="bootstrap", name="transport", value=value, rank=0)
        for value in ("host memory", "the broken memory of n1", ["host memory"])
    )
    ranks = {0: RankRecord(rank=0, node="n0", node_rank=0, local_rank=0, device="CPU", kind="CPU")}
    evidence = Evidence(ranks=ranks, asked=(), measurements=(), facts=facts)
    assert [finding.what for finding in bootstrap.judge(evidence, bootstrap.Params()).findings] == [
        "MPI takes the tensors from host memory"
    ]
