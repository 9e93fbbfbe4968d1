"""Root causes first: a hang that an earlier finding explains is no error beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream
from fake_checks import FakeParams, a_plan, fake_load

from seatrial.checks.check import Check
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import NOBODY, Culprit, Finding, Ruling
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.plan.model import Plan
from seatrial.report.console import lines
from seatrial.report.summary import summary

ORDER = ("host", "network", "compute", "links", "bootstrap", "collectives")
NODE1 = Culprit(kind="node", name="node gpu-1", ranks=(1,), nodes=("gpu-1",))


def _found(check: str, severity: str = "fail", culprit: Culprit = NODE1) -> Finding:
    what = f"{check} says that node gpu-1 is wrong"
    return Finding(severity=severity, check=check, what=what, culprit=culprit, action="mend it")  # type: ignore[arg-type]


def _concluded(stream: Stream, *judged: Finding) -> Conclusion:
    """Return the conclusion where the judges of the checks say this."""

    def load(name: str) -> Check:
        def judge(evidence: Evidence, params: FakeParams) -> Ruling:
            return Ruling(findings=tuple(finding for finding in judged if finding.check == name))

        return replace(fake_load("compute"), name=name, judge=judge)

    return conclude(stream.events, load=load)


def _plan() -> Plan:
    plan = a_plan(("compute", "bootstrap", "collectives"))
    table = plan.settings["compute"]
    return replace(plan, checks=ORDER, settings=dict.fromkeys(ORDER, table))


def _hung(*seen: dict[str, Any], until: str = "bootstrap") -> Stream:
    stream = Stream(3, nodes=3, plan=_plan()).until(until)
    stream.trouble(*seen, outcome="deadline")
    stream.kill(0, 1, 2)
    return stream.close(ranks=False)


STUCK = [{"rank": rank, "how": "stuck", "phase": "bootstrap/first barrier", "waited_s": 45.0} for rank in range(3)]


def _faults(conclusion: Conclusion) -> Sequence[Finding]:
    return [finding for finding in conclusion.findings if finding.severity in ("fail", "error")]


@pytest.mark.parametrize("check", ["host", "network", "links"])
def test_a_hang_of_all_follows_from_an_earlier_finding(check: str) -> None:
    conclusion = _concluded(_hung(*STUCK), _found(check))
    (fault,) = _faults(conclusion)
    assert fault.check == check
    assert 'follows from this: all 3 ranks hung in "bootstrap/first barrier" for 45 s' in fault.evidence
    assert any('rank 0 on node gpu-0 was waiting in "bootstrap/first barrier"' in line for line in fault.evidence)
    assert conclusion.verdict.status == "FAIL"
    assert conclusion.verdict.checks["bootstrap"] == "fail"
    assert len([line for line in lines(conclusion) if line.startswith("- Error")]) == 1


def test_a_hang_follows_from_a_finding_of_its_own_check() -> None:
    stream = Stream(3, nodes=3, plan=_plan()).until("links")
    stream.measure("links", 0)
    stream.trouble(*STUCK, outcome="deadline")
    stream.kill(0, 1, 2)
    (fault,) = _faults(_concluded(stream.close(ranks=False), _found("links")))
    assert fault.culprit == NODE1
    assert 'follows from this: all 3 ranks hung in "bootstrap/first barrier" for 45 s' in fault.evidence


def test_what_explains_no_hang_stays_beside_it() -> None:
    for judged in (_found("compute"), _found("host", "info"), _found("collectives")):
        faults = _faults(_concluded(_hung(*STUCK), judged))
        assert [fault.culprit.kind for fault in faults].count("fabric") == 1, judged.check


def test_a_warning_that_may_hold_the_cause_is_evidence() -> None:
    (fault,) = _faults(_concluded(_hung(*STUCK), _found("host", "warn")))
    assert fault.culprit.kind == "fabric"
    assert fault.evidence[0] == "host warns: host says that node gpu-1 is wrong; mend it"


def test_a_warning_of_another_check_is_no_evidence() -> None:
    for judged in (_found("compute", "warn"), _found("host", "info")):
        (fault,) = _faults(_concluded(_hung(*STUCK), judged))
        assert not any("says that node gpu-1 is wrong" in line for line in fault.evidence)


@pytest.mark.parametrize(
    ("finding", "is_disconnected"),
    [
        (_found("network"), True),
        (_found("links"), True),
        (_found("network", "warn"), False),
        (_found("host"), False),
        (_found("network", culprit=NOBODY), False),
    ],
)
def test_nodes_that_cannot_connect_have_failed_to_communicate(finding: Finding, is_disconnected: bool) -> None:
    stream = Stream(3, nodes=3, plan=_plan())
    for check in ORDER:
        stream.check(check)
    assert _concluded(stream.close(), finding).is_disconnected is is_disconnected


def test_a_named_rank_follows_only_from_its_own_node() -> None:
    absent: list[dict[str, Any]] = [{"rank": rank, "how": "absent", "phase": "x"} for rank in (1, 2)]
    faults = _faults(_concluded(_hung(*absent), _found("host")))
    assert [(fault.check, fault.culprit.ranks) for fault in faults] == [("host", (1,)), ("bootstrap", (2,))]
    assert any(line.startswith("follows from this: rank 1 (") for line in faults[0].evidence)


def test_a_death_follows_from_nothing() -> None:
    stream = Stream(3, nodes=3, plan=_plan()).until("bootstrap")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -9"}, waiting=(0, 2))
    stream.kill(0, 2)
    conclusion = _concluded(stream.close(ranks=False), _found("host"))
    assert [fault.check for fault in _faults(conclusion)] == ["host", "bootstrap"]
    assert "- Communication (gloo): NOT CHECKED (never started)" in lines(conclusion)


def test_causes_stand_before_consequences() -> None:
    judged = [_found(check, culprit=NOBODY) for check in ("links", "compute", "host")]
    stream = Stream(3, nodes=3, plan=_plan()).until("bootstrap")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 1, "how": "dead"}, waiting=(0, 2))
    stream.kill(0, 2)
    faults = _faults(_concluded(stream.close(ranks=False), *judged))
    assert [fault.check for fault in faults] == ["host", "compute", "links", "bootstrap"]


@pytest.mark.parametrize("judged", [(), (_found("host"),)], ids=["no cause", "a cause"])
def test_communication_that_failed_while_ranks_met_is_no_unchecked_one(judged: tuple[Finding, ...]) -> None:
    assert summary(_concluded(_hung(*STUCK), *judged))[1] == "Communication (gloo): FAIL (the ranks cannot connect)"


def test_each_rank_has_one_stack_without_contradictions() -> None:
    stream = Stream(3, nodes=3, plan=_plan()).until("bootstrap")
    for number in range(4):
        stream.send("node1", "stack", gen=0, rank=1, state="R", wchan="futex", text=f'File "a.py", line {number} in f')
    stream.trouble({"rank": 1, "how": "absent", "detail": "no progress, state S"})
    stream.kill(0, 2)
    (fault,) = _faults(_concluded(stream.close(ranks=False)))
    stacks = [entry for entry in fault.evidence if "File" in entry]
    assert stacks == ['stack of rank 1 on node gpu-1:\nFile "a.py", line 3 in f']
    assert not any("process state" in entry for entry in fault.evidence)
