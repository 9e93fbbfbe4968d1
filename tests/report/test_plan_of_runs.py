"""A plan with limits from recorded runs, and the runs that give none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report.screens import HERE

from seatrial.checks import registry
from seatrial.errors import RequestError
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.plan.plan_reader import read_plan
from seatrial.protocol.wire import Decoder
from seatrial.report.card import card
from seatrial.report.console import lines
from seatrial.report.document import document
from seatrial.report.formats.junit import text as junit
from seatrial.report.plan_of_runs import plan_text
from seatrial.report.summary import fault_injection
from seatrial.report.view import View

Change = Callable[[dict[str, Any]], None]


def recorded(name: str = "pass", change: Change = lambda event: None) -> Conclusion:
    """Judge a recorded run again, with its events changed; ``cut``: the run that passed without its last event."""
    recording = "pass" if name == "cut" else name
    events = list(Decoder().lines((HERE / "recordings" / f"{recording}.events").read_bytes()))
    events = events[:-1] if name == "cut" else events
    for event in events:
        change(event)
    return conclude(events)


def job(**fields: Any) -> Change:
    """Return a change of the job in the first event."""

    def change(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["job"].update(fields)

    return change


def plan(**fields: Any) -> Change:
    """Return a change of the plan in the first event."""

    def change(event: dict[str, Any]) -> None:
        if event["kind"] == "run":
            event["plan"].update(fields)

    return change


def other_device(event: dict[str, Any]) -> None:
    if event["kind"] == "rank":
        event["device"] = "Other CPU"


def other_work(event: dict[str, Any]) -> None:
    if event["kind"] == "run":
        event["plan"]["settings"]["compute"]["cpu_size"][0] = 77


def test_the_limits_are_below_every_value_of_the_runs(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(plan_text([recorded(), recorded()]))
    read = read_plan(str(file), schemas=registry.schemas(), scopes=registry.scopes())
    limits = {
        (check, name): setting.value
        for check, table in read.settings.items()
        for name, setting in table.items()
        if setting.origin == f"plan {file}:{check}.{name}"
    }
    assert set(limits) == {
        ("compute", "min_tflops"), ("memory", "min_copy_gbps"), ("collectives", "min_busbw_gbps"),
    }  # fmt: skip
    lowest = min(
        entry.value for entry in recorded().trial.measurements if (entry.name, entry.variant) == ("tflops", "fp32")
    )
    assert 0 < limits["compute", "min_tflops"] <= lowest
    assert read.demands_limits
    assert "median" in file.read_text()
    assert recorded().trial.run in file.read_text()


@pytest.mark.parametrize(
    ("conclusions", "words"),
    [
        (lambda: [recorded("killed")], "FAIL; limits come from runs that passed"),
        (lambda: [recorded(), recorded(change=other_device)], "differ in the devices"),
        (lambda: [recorded(change=job(planted=["x@y:0"]))], "a fault was planted"),
        (lambda: [recorded(change=plan(not_asked={"links": "--skip"}))], "the PASS is partial (links not asked for)"),
        (lambda: [recorded(change=other_work)], "measures speeds with other sizes than each level"),
    ],
)
def test_runs_that_give_no_limits(conclusions: Callable[[], list[Conclusion]], words: str) -> None:
    with pytest.raises(RequestError, match=words.replace("(", r"\(").replace(")", r"\)")):
        plan_text(conclusions())


def test_a_pass_names_the_speeds_without_a_limit() -> None:
    keys = ("compute.min_tflops", "memory.min_copy_gbps", "collectives.min_busbw_gbps")
    conclusion = recorded()
    assert conclusion.verdict.unlimited == keys
    assert conclusion.verdict.partial == ()
    assert f"held against no limit: {', '.join(keys)} (docs/checks.md)" in card(conclusion, None, View())


def test_a_plan_that_demands_limits_is_a_partial_pass_without_them() -> None:
    demanding = recorded(change=plan(demands_limits=True))
    assert demanding.verdict.status == "PASS"
    assert "no limit compute.min_tflops" in demanding.verdict.partial
    shown = card(demanding, Path("reports/x/report.html"), View())
    assert shown[-1].startswith("next: seatrial plan from reports/x > limits.toml, then: seatrial run limits.toml")
    # Such a run gives the limits that it lacks.
    assert "min_tflops" in plan_text([demanding])


def test_no_command_is_proposed_that_would_be_refused() -> None:
    def both(event: dict[str, Any]) -> None:
        other_work(event)
        plan(demands_limits=True)(event)

    shown = card(recorded(change=both), Path("reports/x/report.html"), View())
    assert shown[-1].startswith("next: write limits into the plan: compute.min_tflops, memory.min_copy_gbps, ")


def test_a_full_pass_can_be_required() -> None:
    def both(event: dict[str, Any]) -> None:
        job(require_full=True)(event)
        plan(demands_limits=True)(event)

    assert recorded(change=both).verdict.exit_code == 3
    assert recorded(change=job(require_full=True)).verdict.exit_code == 0
    assert recorded(change=plan(demands_limits=True)).verdict.exit_code == 0
    assert recorded("killed", change=both).verdict.exit_code == 1


@pytest.mark.parametrize(
    ("name", "partial", "require_full", "shown", "exit_code"),
    [
        ("pass", False, False, "PASS", 0),
        ("pass", False, True, "PASS", 0),
        ("pass", True, False, "PASS (partial)", 0),
        ("pass", True, True, "PASS (partial; exit code 3 because of --require-full)", 3),
        ("killed", False, False, "FAIL", 1),
        ("killed", False, True, "FAIL", 1),
        ("killed", True, False, "FAIL", 1),
        ("killed", True, True, "FAIL", 1),
        ("cut", False, False, "INCONCLUSIVE", 3),
        ("cut", False, True, "INCONCLUSIVE", 3),
        ("cut", True, False, "INCONCLUSIVE", 3),
        ("cut", True, True, "INCONCLUSIVE", 3),
    ],
)
def test_banner_last_lines_and_files_agree(
    name: str, partial: bool, require_full: bool, shown: str, exit_code: int
) -> None:
    """A PASS may be partial, and --require-full may refuse that: every place says both, as the exit code does."""

    def change(event: dict[str, Any]) -> None:
        plan(demands_limits=partial)(event)
        job(require_full=require_full)(event)

    conclusion = recorded(name, change)
    limits = ", ".join(conclusion.verdict.partial)
    in_full = shown.replace("(partial", f"(partial: {limits}")
    banner, *_ = (line for line in card(conclusion, None, View()) if line.startswith("FINAL ACCEPTANCE"))
    assert banner == f"FINAL ACCEPTANCE: {in_full}"
    (figures,) = (line for line in card(conclusion, None, View()) if " passed, " in line)
    assert figures.startswith(f"{shown}: ")
    (line,) = lines(conclusion, None, View(is_quiet=True))
    assert line.removeprefix(f"{fault_injection(conclusion)}; ").startswith(f"{in_full}: ")
    report = document(conclusion)
    assert report["exit_code"] == conclusion.verdict.exit_code == exit_code
    assert report["acceptance"]["status"] == shown.partition(" ")[0]
    assert bool(report["acceptance"]["partial"]) == ("partial" in shown)
    *_, trial = ElementTree.fromstring(junit(conclusion)).iter("testcase")
    assert trial.get("name") == "trial"
    assert bool(len(trial)) == (exit_code != 0)


def test_acceptance_demands_limits() -> None:
    read = read_plan("acceptance", schemas=registry.schemas(), scopes=registry.scopes())
    assert read.demands_limits
    assert {"compute", "memory", "links", "collectives"} <= set(read.checks)
