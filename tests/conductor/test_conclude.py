"""From events to a conclusion: judges that err, plans that cannot be read, events that were lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream, healthy
from fake_checks import a_plan, fake_load

from seatrial.checks.base import Check, Stage
from seatrial.conductor.conclude import conclude
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Ruling


def test_a_healthy_trial_passes() -> None:
    conclusion = conclude(healthy(3).events, load=fake_load)
    assert conclusion.verdict.status == "PASS"
    assert conclusion.findings == ()
    assert sorted(conclusion.rulings) == ["bootstrap", "collectives", "compute", "training"]


def test_a_judge_that_errs_takes_only_its_own_check_away() -> None:
    def broken(evidence: Evidence, params: Any) -> Ruling:
        raise ZeroDivisionError("division by zero")

    def load(name: str) -> Check:
        return replace(fake_load(name), judge=broken) if name == "training" else fake_load(name)

    conclusion = conclude(healthy().events, load=load)
    (finding,) = conclusion.findings
    assert (finding.severity, finding.check) == ("error", "training")
    assert "ZeroDivisionError" in finding.what
    assert conclusion.verdict.exit_code == 3
    assert conclusion.verdict.checks["training"] == "error"
    assert conclusion.verdict.checks["compute"] == "pass"


def test_an_unknown_check_is_inconclusive() -> None:
    conclusion = conclude(healthy(plan=a_plan(("compute", "telepathy"))).events, load=fake_load)
    assert conclusion.verdict.checks == {"compute": "pass", "telepathy": "error"}
    assert conclusion.verdict.exit_code == 3


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {}},
        {"settings": {"compute": 3}},
        {"deadline_s": []},
        {"settings": {"compute": {"min_value": []}}},
        {"settings": {"compute": {"min_value": ["much", "plan"]}}},
    ],
)
def test_a_plan_that_cannot_be_read_is_told(change: dict[str, Any]) -> None:
    stream = healthy(plan=a_plan(("compute",)))
    stream.events[0]["plan"].update(change)
    conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.exit_code == 3
    assert conclusion.findings[0].severity == "error"


def test_every_stage_has_to_be_asked_of_all() -> None:
    def load(name: str) -> Check:
        return replace(fake_load(name), stages=(Stage(), Stage(name="again")))

    conclusion = conclude(healthy().events, load=load)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert conclusion.rulings["compute"].absent == ("stage again",)


def test_with_events_lost_a_comparison_names_nobody() -> None:
    """Three digests against two becomes two against three when some are lost: the wrong ones would be named."""

    def vote(evidence: Evidence, params: Any) -> Ruling:
        culprit = Culprit(kind="rank", name="rank 0", ranks=(0,))
        return Ruling(findings=(Finding(severity="fail", check="compute", what="rank 0 differs", culprit=culprit),))

    def load(name: str) -> Check:
        return replace(fake_load(name), judge=vote)

    events = healthy(plan=a_plan(("compute",))).events
    assert conclude(events, load=load).verdict.status == "FAIL"
    after = conclude(events[:-1], load=load)
    assert after.verdict.status == "INCONCLUSIVE"
    assert [finding.culprit.kind for finding in after.findings] == ["none"]


def test_with_events_lost_a_limit_from_outside_still_fails() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5)
    assert conclude(stream.events, load=fake_load).verdict.status == "FAIL"


def test_a_check_that_did_not_finish_is_judged_but_not_remarked_upon() -> None:
    def remark(evidence: Evidence, params: Any) -> Ruling:
        nobody = Culprit(kind="none", name="nobody")
        remarks = [Finding(severity="info", check="compute", what="nothing to see", culprit=nobody)]
        fails = [Finding(severity="fail", check="compute", what="a wrong value", culprit=nobody)]
        return Ruling(findings=(*remarks, *fails) if evidence.figures else tuple(remarks))

    def load(name: str) -> Check:
        return replace(fake_load(name), judge=remark)

    plan = a_plan(("compute",))
    told = [finding.what for finding in conclude(healthy(plan=plan).events, load=load).findings]
    assert told == ["a wrong value", "nothing to see"]
    stream = Stream(plan=plan)
    stream.begin("compute")
    assert conclude(stream.events, load=load).findings == ()
    stream.tell("compute", 0)
    assert [finding.what for finding in conclude(stream.events, load=load).findings][:1] == [
        "a wrong value, by what is left of the events"
    ]


def test_only_generation_0_is_judged() -> None:
    stream = Stream(4, nodes=2).until("collectives")
    stream.exit(3, -9, ours=False)
    stream.trouble({"rank": 3, "how": "dead"})
    stream.generation = 1
    stream.start((0, 1, 2))
    stream.check("collectives", lambda rank: 0.1)
    conclusion = conclude(stream.close().events, load=fake_load)
    assert [finding.culprit.ranks for finding in conclusion.findings] == [(3,)]
    assert conclusion.verdict.judged == 8
