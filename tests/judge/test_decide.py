"""The table of verdicts: what leads to PASS, FAIL, INCONCLUSIVE and to which exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from event_streams import SCENES, Stream, healthy
from fake_checks import CHECKS, a_plan, fake_load

from seatrial.evidence.findings import Ruling
from seatrial.judge.conclude import conclude
from seatrial.judge.decide import Verdict, decide
from seatrial.judge.fold import fold


def verdict(stream: Stream) -> Verdict:
    return conclude(stream.events, load=fake_load).verdict


@pytest.mark.parametrize(
    ("scene", "status", "exit_code"),
    [
        ("healthy", "PASS", 0),
        ("killed", "FAIL", 1),
        ("exited", "FAIL", 1),
        ("exited early", "FAIL", 1),
        ("frozen", "FAIL", 1),
        ("absent", "FAIL", 1),
        ("late", "FAIL", 1),
        ("out of memory", "FAIL", 1),
        ("device", "FAIL", 1),
        ("fabric", "FAIL", 1),
        ("stuck", "FAIL", 1),
        ("node silent", "FAIL", 1),
        ("node lost", "FAIL", 1),
        ("second generation", "FAIL", 1),
        ("own", "INCONCLUSIVE", 3),
        ("request", "INCONCLUSIVE", 2),
        ("noted", "INCONCLUSIVE", 3),
        ("interrupted", "INCONCLUSIVE", 130),
    ],
)
def test_the_table(scene: str, status: str, exit_code: int) -> None:
    decided = verdict(SCENES[scene]())
    assert (decided.status, decided.exit_code) == (status, exit_code)
    assert bool(decided.reasons) == (status == "INCONCLUSIVE")


def test_a_missed_limit_fails_and_names_its_check() -> None:
    stream = Stream()
    for check in stream.plan.checks:
        stream.check(check, (lambda rank: 0.5 if rank else 2.0) if check == "compute" else (lambda rank: 2.0))
    decided = verdict(stream.close())
    assert (decided.status, decided.exit_code) == ("FAIL", 1)
    assert decided.checks == {"compute": "fail", "bootstrap": "pass", "collectives": "pass", "training": "pass"}
    assert (decided.judged, decided.measurements) == (8, 8)


def _never_started(stream: Stream) -> None:
    for check in stream.plan.checks[:-1]:
        stream.check(check)


def _not_done_by_all(stream: Stream) -> None:
    _never_started(stream)
    stream.begin("training")
    for rank in stream.alive:
        stream.measure("training", rank)
    stream.done(0)
    stream.step_end()


def _nothing_measured(stream: Stream) -> None:
    _never_started(stream)
    stream.begin("training")
    for rank in stream.alive:
        stream.done(rank)
    stream.step_end()


def _not_of_all(stream: Stream) -> None:
    _never_started(stream)
    stream.alive = (0,)
    stream.check("training")
    stream.alive = (0, 1)


def test_a_series_counts_as_one_measurement() -> None:
    stream = Stream().until("training")
    for rank in stream.alive:
        for step in range(30):
            stream.measure("training", rank, 2.0 + step, step=step)
            stream.measure("training", rank, 9.0 - step, step=step, name="loss")
        stream.done(rank)
    stream.step_end()
    decided = verdict(stream.close())
    # Each rank has one value in each of four checks, and in the last one a series without a limit.
    assert (decided.status, decided.judged, decided.measurements) == ("PASS", 8, 10)


def test_a_repeated_report_counts_as_one_measurement() -> None:
    stream = Stream().until("training")
    for rank in stream.alive:
        for runs in range(3):
            stream.measure("training", rank, 2.0 + runs)
        stream.done(rank)
    stream.step_end()
    decided = verdict(stream.close())
    assert (decided.status, decided.judged, decided.measurements) == ("PASS", 8, 8)


def test_a_pass_without_a_limit_is_partial() -> None:
    trial = fold(healthy().events)
    rulings = {name: Ruling() for name in trial.plan["checks"]}
    assert decide(trial, rulings, ()).partial == ()
    decided = decide(trial, {**rulings, "training": Ruling(unjudged=("accuracy not judged",))}, ())
    assert (decided.status, decided.partial) == ("PASS", ("accuracy not judged",))


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (_never_started, "absent"),
        (_not_done_by_all, "inconclusive"),
        (_nothing_measured, "inconclusive"),
        (_not_of_all, "inconclusive"),
    ],
)
def test_what_was_not_checked_does_not_pass(act: Callable[[Stream], None], status: str) -> None:
    stream = Stream()
    act(stream)
    decided = verdict(stream.close())
    assert (decided.status, decided.exit_code, decided.checks["training"]) == ("INCONCLUSIVE", 3, status)


def test_of_many_absent_measurements_four_are_named() -> None:
    trial = fold(healthy().events)
    rulings = {name: Ruling() for name in trial.plan["checks"]}
    for count, reason in ((4, "compute lacks a, b, c, d"), (9, "compute lacks a, b, c, d and 5 more")):
        decided = decide(trial, {**rulings, "compute": Ruling(absent=tuple("abcdefghi"[:count]))}, ())
        assert (decided.status, decided.reasons) == ("INCONCLUSIVE", (reason,))


def test_a_pass_without_a_check_is_partial() -> None:
    plan = a_plan(("compute", "bootstrap", "collectives"), {"training": "--validation-only"})
    decided = verdict(healthy(plan=plan))
    assert (decided.status, decided.exit_code) == ("PASS", 0)
    assert decided.partial == ("training not asked for",)
    assert decided.checks["training"] == "not_asked"


def test_a_plan_without_a_check_is_partial() -> None:
    assert verdict(healthy(plan=a_plan(("compute",)))).partial == (
        "collectives not in the plan",
        "training not in the plan",
    )


@pytest.mark.parametrize(
    ("checks", "machines", "partial"),
    [
        (CHECKS, ["a", "b"], ("network, links not asked for",)),
        ((*CHECKS, "network"), ["a", "b"], ("links not asked for",)),
        ((*CHECKS, "network", "links"), ["a", "b"], ()),
        (CHECKS, ["a", "a"], ()),
    ],
)
def test_several_machines_without_a_look_at_their_links(
    checks: tuple[str, ...], machines: list[str], partial: tuple[str, ...]
) -> None:
    stream = healthy(2, nodes=2, plan=a_plan(checks), hostnames=machines)
    for event in stream.events:
        if event["kind"] == "node":
            event["address"] = event["hostname"]
    trial = fold(stream.events)
    assert decide(trial, {name: Ruling() for name in checks}, ()).partial == partial


def test_a_node_that_claims_to_be_another_machine_hides_no_limitation() -> None:
    stream = healthy(2, nodes=2, hostnames=["a", "a"])
    for event in stream.events:
        if event["kind"] == "node":
            event["address"] = "10.0.0.1"
        elif event["kind"] == "generation":
            event["places_of_nodes"] = {"0": "10.0.0.1", "1": "10.0.0.2"}
    decided = decide(fold(stream.events), {name: Ruling() for name in CHECKS}, ())
    assert decided.partial == ("network, links not asked for",)


def test_links_that_the_user_took_out_are_listed_once() -> None:
    plan = a_plan((*CHECKS, "network"), {"links": "--skip links"})
    trial = fold(healthy(2, nodes=2, plan=plan).events)
    assert decide(trial, {name: Ruling() for name in plan.checks}, ()).partial == ("links not asked for",)


def test_one_rank_cannot_communicate() -> None:
    decided = verdict(healthy(1))
    assert (decided.status, decided.partial, decided.checks["collectives"]) == ("PASS", ("1 rank",), "skipped")


def test_one_rank_with_communication_only_is_inconclusive() -> None:
    assert verdict(healthy(1, plan=a_plan(("collectives",)))).status == "INCONCLUSIVE"


def test_an_interrupted_trial_can_fail() -> None:
    stream = Stream()
    stream.check("compute", lambda rank: 0.5)
    stream.begin("bootstrap")
    stream.send("conductor", "interrupted", by="SIGTERM")
    stream.step_end("interrupted")
    stream.kill(0, 1)
    decided = verdict(stream.close(ranks=False))
    assert (decided.status, decided.exit_code, decided.interrupted) == ("FAIL", 130, True)


def test_without_rulings_nothing_passes() -> None:
    decided = decide(fold(healthy().events), {}, ())
    assert decided.status == "INCONCLUSIVE"
    assert set(decided.checks.values()) == {"inconclusive"}


def test_damaged_lines_alone_forbid_a_pass() -> None:
    decided = conclude(healthy().events, damaged=1, load=fake_load).verdict
    assert decided.status == "INCONCLUSIVE"
    (reason,) = decided.reasons
    assert reason.startswith("incomplete record: 1 lines were cut or changed, or stand")


@pytest.mark.parametrize("has_notes", [False, True])
@pytest.mark.parametrize("explained", [False, True])
def test_a_run_that_never_began_has_one_reason(explained: bool, has_notes: bool) -> None:
    stream = Stream()
    stream.events = stream.events[:1]
    if has_notes:
        note = {"kind": "note", "seq": 1, "severity": "info", "text": "no address of gpu-7 is known here"}
        stream.events.append({**{name: stream.events[0][name] for name in ("run", "src", "t")}, **note})
    if explained:
        stream.send("recorder1", "note", severity="error", text="pod t-0 does not start")
        stream.send("recorder1", "end")
    decided = verdict(stream)
    assert decided.status == "INCONCLUSIVE"
    assert (decided.reasons == ("pod t-0 does not start",)) is explained


@pytest.mark.parametrize(("source", "code"), [("recorder1", 2), ("conductor", 3), ("node0", 3)])
def test_only_the_controller_may_call_the_request_wrong_without_a_rank(source: str, code: int) -> None:
    stream = healthy()
    stream.send(source, "note", severity="error", text="no such image", cause="request")
    assert verdict(stream).exit_code == code


def test_not_finished_comes_before_what_is_lacking() -> None:
    stream = Stream()
    _not_done_by_all(stream)
    assert verdict(stream.close()).reasons == ("not all ranks finished training",)


@pytest.mark.parametrize(
    ("absent", "partial"),
    [(["node2: no answer", "node3: refused"], ("2 of the hosts absent: node2, node3",)), ([], ()), ("node2", ())],
)
def test_hosts_that_were_left_out_make_a_pass_partial(absent: object, partial: tuple[str, ...]) -> None:
    assert verdict(healthy(2, absent=absent)).partial == partial


def test_a_plan_below_its_level_is_a_partial_pass() -> None:
    """Of this kind of device: what a trial of CPUs would do on GPUs weakens nothing."""
    below = {"compute.cpu_size": "64 (level quick: 1024)", "compute.gpu_size": "64 (level quick: 8192)"}
    decided = verdict(healthy(plan=replace(a_plan(), reduced=below), require_full=True))
    assert (decided.status, decided.exit_code) == ("PASS", 3)
    assert decided.partial == ("compute.cpu_size is 64 (level quick: 1024)",)
