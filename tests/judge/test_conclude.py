"""From events to a conclusion: judges that fail, unreadable plans, missing events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream, healthy, node_lost
from fake_checks import a_plan, fake_load

from seatrial.checks import registry
from seatrial.checks.check import Check, Stage
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.judge.conclude import conclude, evidence_of, fails
from seatrial.judge.fold import fold


def test_a_healthy_trial_passes() -> None:
    conclusion = conclude(healthy(3).events, load=fake_load)
    assert conclusion.verdict.status == "PASS"
    assert conclusion.findings == ()
    assert sorted(conclusion.rulings) == ["bootstrap", "collectives", "compute", "training"]


@pytest.mark.parametrize(
    ("source", "untrusted", "status"),
    [
        ("conductor", [1], "INCONCLUSIVE"),
        ("hosts", [1], "INCONCLUSIVE"),
        ("controller", [0, 1], "INCONCLUSIVE"),
        ("hosts", [0], "INCONCLUSIVE"),
        ("node0", [1], "FAIL"),
    ],
)
def test_no_node_is_blamed_in_whose_place_another_one_may_report(
    source: str, untrusted: list[int], status: str
) -> None:
    stream = node_lost("lost")
    stream.send(source, "note", severity="error", text="node 1 is not what it says", untrusted=untrusted)
    conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.status == status
    blamed = [finding.culprit.nodes for finding in conclusion.findings if finding.culprit.kind != "none"]
    assert blamed == ([] if status == "INCONCLUSIVE" else [("gpu-1",)])


def test_a_check_that_is_not_known_is_no_bug_of_a_judge() -> None:
    def broken(evidence: Evidence, params: Any) -> Ruling:
        return Ruling(absent=(dict[str, str]()["cpu_s"],))

    def load(name: str) -> Check:
        if name == "training":
            raise KeyError(name)
        return replace(fake_load(name), judge=broken) if name == "compute" else fake_load(name)

    found = {finding.check: finding for finding in conclude(healthy(2).events, load=load).findings}
    assert found["training"].what == "this seatrial cannot judge training: it does not know 'training'"
    assert found["training"].evidence == ()
    assert found["compute"].what == "the judge of compute failed: KeyError: 'cpu_s'"
    assert "in broken" in found["compute"].evidence[0]


def test_a_value_of_a_node_that_may_be_another_one_is_no_standard() -> None:
    def slow(evidence: Evidence, params: Any) -> Ruling:
        culprit = Culprit(kind="rank", name="rank 0", ranks=(0,))
        return Ruling(findings=(Finding(severity="fail", check="compute", what="rank 0 is slow", culprit=culprit),))

    def load(name: str) -> Check:
        return replace(fake_load(name), judge=slow) if name == "compute" else fake_load(name)

    stream = healthy(2, nodes=2)
    assert conclude(stream.events, load=load).verdict.status == "FAIL"
    stream.send("hosts", "note", severity="error", text="node 1 is not what it says", untrusted=[1])
    stream.send("hosts", "end")
    assert conclude(stream.events, load=load).verdict.status == "INCONCLUSIVE"


def test_a_failing_judge_costs_only_its_check() -> None:
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
def test_an_unreadable_plan_is_an_error(change: dict[str, Any]) -> None:
    stream = healthy(plan=a_plan(("compute",)))
    stream.events[0]["plan"].update(change)
    conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.verdict.exit_code == 3
    assert conclusion.findings[0].severity == "error"


def test_a_stage_that_never_started_is_absent() -> None:
    def load(name: str) -> Check:
        return replace(fake_load(name), stages=(Stage(), Stage(name="again")))

    conclusion = conclude(healthy().events, load=load)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert conclusion.rulings["compute"].absent == ("stage again",)


def test_a_record_without_what_excuses_failures_lacks_nothing() -> None:
    """An earlier version may have had no such stage; without it nobody is excused."""

    def load(name: str) -> Check:
        return replace(fake_load(name), stages=(Stage(), Stage(name="count", excuses=True)))

    conclusion = conclude(healthy().events, load=load)
    assert (conclusion.verdict.status, conclusion.rulings["compute"].absent) == ("PASS", ())


def test_an_incomplete_record_names_nobody_by_comparison() -> None:
    """With two digests missing, three against two becomes one against two: the wrong rank would be named."""

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


def test_an_incomplete_record_fails_by_a_fixed_limit() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute", lambda rank: 0.5)
    assert conclude(stream.events, load=fake_load).verdict.status == "FAIL"


@pytest.mark.parametrize(("value", "is_failed"), [(2.0, False), (0.5, True)])
def test_a_check_fails_so_far_by_what_it_measured(
    value: float, is_failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load", fake_load)
    stream = Stream().until("compute")
    stream.measure("compute", 1, value)
    events = [event for event in stream.events if event["kind"] in ("rank", "measurements", "facts")]
    assert fails(stream.plan, "compute", events) is is_failed


def test_an_unfinished_check_has_no_remarks() -> None:
    def remark(evidence: Evidence, params: Any) -> Ruling:
        nobody = Culprit(kind="none", name="nobody")
        remarks = [Finding(severity="info", check="compute", what="nothing to see", culprit=nobody)]
        fails = [Finding(severity="fail", check="compute", what="a wrong value", culprit=nobody)]
        return Ruling(findings=(*remarks, *fails) if evidence.measurements else tuple(remarks))

    def load(name: str) -> Check:
        return replace(fake_load(name), judge=remark)

    plan = a_plan(("compute",))
    clauses = [finding.what for finding in conclude(healthy(plan=plan).events, load=load).findings]
    assert clauses == ["a wrong value", "nothing to see"]
    stream = Stream(plan=plan)
    stream.begin("compute")
    assert conclude(stream.events, load=load).findings == ()
    stream.measure("compute", 0)
    stream.done(0)
    clauses = [finding.what for finding in conclude(stream.events, load=load).findings]
    assert clauses[0] == "a wrong value, judged by an incomplete record"
    assert "nothing to see" not in clauses


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


def _about_nothing(name: str) -> Check:
    return (
        replace(fake_load(name), scope="agents", judge=lambda evidence, params: Ruling(not_applicable="one machine"))
        if name == "compute"
        else fake_load(name)
    )


def _asked_of_agents(asked: tuple[int, ...], done: tuple[int, ...]) -> Stream:
    """A trial on two nodes whose first check is asked of agents."""
    stream = Stream(2, nodes=2, plan=a_plan(("compute", "training")))
    step = stream.begin("compute")
    stream.events[-1] |= {"ranks": [], "nodes": list(asked)}
    for node in done:
        stream.send(f"node{node}", "node_done", gen=0, step=step, seconds=0.5, share=[], error="")
    stream.step_end()
    stream.check("training")
    return stream.close()


def test_a_check_about_nothing_is_counted_and_said() -> None:
    verdict = conclude(_asked_of_agents((0, 1), (0, 1)).events, load=_about_nothing).verdict
    assert (verdict.status, verdict.checks) == ("PASS", {"compute": "not_applicable", "training": "pass"})


@pytest.mark.parametrize(("asked", "done"), [((0, 1), (0,)), ((0, 1), ()), ((0,), (0,))])
def test_a_check_about_nothing_needs_every_node(asked: tuple[int, ...], done: tuple[int, ...]) -> None:
    verdict = conclude(_asked_of_agents(asked, done).events, load=_about_nothing).verdict
    assert verdict.status == "INCONCLUSIVE"
    assert verdict.checks["compute"] == "inconclusive"


def test_a_judge_gets_the_evidence_of_its_own_check() -> None:
    """A rank that another check waits for has finished this one."""
    given: dict[str, Evidence] = {}

    def load(name: str) -> Check:
        def judge(evidence: Evidence, params: Any) -> Ruling:
            given[name] = evidence
            return Ruling()

        return replace(fake_load(name), judge=judge)

    stream = Stream(4, nodes=2, plan=a_plan(("compute", "training")))
    stream.check("compute")
    stream.begin("training")
    for rank in stream.alive:
        stream.measure("training", rank)
    for rank in (0, 1, 2):
        stream.done(rank)
    stream.step_end("deadline")
    conclude(stream.close(ranks=False).events, load=load)
    assert [given[name].asked for name in ("compute", "training")] == [(0, 1, 2, 3), (0, 1, 2)]
    for name, evidence in given.items():
        assert {fact.check for fact in evidence.facts} == {name}
        assert len(evidence.facts) == len(evidence.measurements) == 4


def test_a_node_that_did_not_finish_is_not_in_the_evidence() -> None:
    given: list[Evidence] = []

    def load(name: str) -> Check:
        def judge(evidence: Evidence, params: Any) -> Ruling:
            given.append(evidence)
            return Ruling()

        return replace(_about_nothing(name), judge=judge)

    conclude(_asked_of_agents((0, 1), (1,)).events, load=load)
    assert given[0].nodes == {1: "gpu-1"}


def test_a_name_that_hosts_of_two_places_claim_leads_to_none() -> None:
    """Node 2 calls itself gpu-1, and names the address of node 1."""
    events = Stream(3, nodes=3, hostnames=["gpu-0", "gpu-1", "gpu-1"], hosts=["a", "b", "c"]).close().events
    for event in events:
        if event["kind"] == "node" and event["node"] == 2:
            event["address"] = "10.0.0.1"
    assert evidence_of(fold(events), "compute").other_names["gpu-1"] == 1
    begun = next(event for event in events if event["kind"] == "generation")
    begun["places_of_nodes"] = {str(node): f"10.0.0.{node}" for node in range(3)}
    evidence = evidence_of(fold(events), "compute")
    assert evidence.other_names == {"gpu-0": 0, "10.0.0.0": 0, "a": 0, "b": 1, "c": 2}
    assert evidence.disputed_names == {"gpu-1", "10.0.0.1"}
