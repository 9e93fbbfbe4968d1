"""The table of verdicts: what leads to PASS, FAIL, INCONCLUSIVE and to which exit code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from event_streams import SCENES, Stream, healthy
from fake_checks import a_plan, fake_load

from seatrial.conductor.conclude import conclude
from seatrial.verdict.decide import Verdict, decide
from seatrial.verdict.findings import Ruling
from seatrial.verdict.fold import fold


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
        ("request", "INCONCLUSIVE", 3),
        ("noted", "INCONCLUSIVE", 3),
        ("interrupted", "INCONCLUSIVE", 130),
    ],
)
def test_the_table(scene: str, status: str, exit_code: int) -> None:
    found = verdict(SCENES[scene]())
    assert (found.status, found.exit_code) == (status, exit_code)
    assert bool(found.reasons) == (status == "INCONCLUSIVE")


def test_a_missed_limit_fails_and_names_its_check() -> None:
    stream = Stream()
    for check in stream.plan.checks:
        stream.check(check, (lambda rank: 0.5 if rank else 2.0) if check == "compute" else (lambda rank: 2.0))
    found = verdict(stream.close())
    assert (found.status, found.exit_code) == ("FAIL", 1)
    assert found.checks == {"compute": "fail", "bootstrap": "pass", "collectives": "pass", "training": "pass"}
    assert (found.judged, found.figures) == (8, 8)


def _never_begun(stream: Stream) -> None:
    for check in stream.plan.checks[:-1]:
        stream.check(check)


def _not_done_by_all(stream: Stream) -> None:
    _never_begun(stream)
    stream.begin("training")
    for rank in stream.alive:
        stream.tell("training", rank)
    stream.done(0)
    stream.step_end()


def _nothing_measured(stream: Stream) -> None:
    _never_begun(stream)
    stream.begin("training")
    for rank in stream.alive:
        stream.done(rank)
    stream.step_end()


def _not_of_all(stream: Stream) -> None:
    _never_begun(stream)
    stream.alive = (0,)
    stream.check("training")
    stream.alive = (0, 1)


def test_a_series_counts_as_one_figure() -> None:
    stream = Stream().until("training")
    for rank in stream.alive:
        for step in range(30):
            stream.tell("training", rank, 2.0 + step, step=step)
            stream.tell("training", rank, 9.0 - step, step=step, name="loss")
        stream.done(rank)
    stream.step_end()
    found = verdict(stream.close())
    # Of each rank one value in each of four checks, and in the last one a series that nobody judges.
    assert (found.status, found.judged, found.figures) == ("PASS", 8, 10)


def test_what_is_told_again_counts_as_one_figure() -> None:
    stream = Stream().until("training")
    for rank in stream.alive:
        for runs in range(3):
            stream.tell("training", rank, 2.0 + runs)
        stream.done(rank)
    stream.step_end()
    found = verdict(stream.close())
    assert (found.status, found.judged, found.figures) == ("PASS", 8, 8)


def test_what_nothing_could_judge_makes_a_pass_partial() -> None:
    trial = fold(healthy().events)
    rulings = {name: Ruling() for name in trial.plan["checks"]}
    assert decide(trial, rulings, ()).partial == ()
    found = decide(trial, {**rulings, "training": Ruling(unjudged=("accuracy not judged",))}, ())
    assert (found.status, found.partial) == ("PASS", ("accuracy not judged",))


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (_never_begun, "absent"),
        (_not_done_by_all, "inconclusive"),
        (_nothing_measured, "inconclusive"),
        (_not_of_all, "inconclusive"),
    ],
)
def test_what_was_not_checked_does_not_pass(act: Callable[[Stream], None], status: str) -> None:
    stream = Stream()
    act(stream)
    found = verdict(stream.close())
    assert (found.status, found.exit_code, found.checks["training"]) == ("INCONCLUSIVE", 3, status)


def test_what_the_user_took_out_makes_a_pass_partial() -> None:
    plan = a_plan(("compute", "bootstrap", "collectives"), {"training": "--validation-only"})
    found = verdict(healthy(plan=plan))
    assert (found.status, found.exit_code) == ("PASS", 0)
    assert found.partial == ("training not asked for",)
    assert found.checks["training"] == "not_asked"


def test_a_plan_that_never_had_a_check_is_partial_too() -> None:
    assert verdict(healthy(plan=a_plan(("compute",)))).partial == (
        "collectives not in the plan",
        "training not in the plan",
    )


def test_one_rank_cannot_communicate() -> None:
    found = verdict(healthy(1))
    assert (found.status, found.partial, found.checks["collectives"]) == ("PASS", ("1 rank",), "skipped")


def test_one_rank_that_was_asked_for_nothing_else_decides_nothing() -> None:
    assert verdict(healthy(1, plan=a_plan(("collectives",)))).status == "INCONCLUSIVE"


def test_an_interruption_keeps_a_failure_that_stands() -> None:
    stream = Stream()
    stream.check("compute", lambda rank: 0.5)
    stream.begin("bootstrap")
    stream.say("conductor", "interrupted", by="SIGTERM")
    stream.step_end("interrupted")
    stream.kill(0, 1)
    found = verdict(stream.close(ranks=False))
    assert (found.status, found.exit_code, found.interrupted) == ("FAIL", 130, True)


def test_without_rulings_nothing_passes() -> None:
    found = decide(fold(healthy().events), {}, ())
    assert found.status == "INCONCLUSIVE"
    assert set(found.checks.values()) == {"inconclusive"}


def test_damaged_lines_alone_forbid_a_pass() -> None:
    found = conclude(healthy().events, damaged=1, load=fake_load).verdict
    assert found.status == "INCONCLUSIVE"
    assert found.reasons == ("lost: lines cut or changed on the way: 1",)
