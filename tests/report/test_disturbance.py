"""A run beside other work says so with every PASS and FAIL, and so do limits that come from such runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.test_plan_of_runs import disturbed, job, plan, recorded

from seatrial.checks.network.judge import ONE_MACHINE
from seatrial.evidence.findings import Ruling
from seatrial.judge.conclude import Conclusion
from seatrial.report.card import card
from seatrial.report.console import lines
from seatrial.report.disturbance import DISTURBED_ORIGIN, cpu_shortage, disturbance_lines
from seatrial.report.document import document
from seatrial.report.formats.html import text as html
from seatrial.report.view import View

WORDS = (
    "disturbed: other processes held the CPU (rank 0 got 40 % of the CPU time that it could use in compute); 80 % is"
    " demanded, so the speeds of this run say little"
)


def undisturbed(event: dict[str, Any]) -> None:
    """Make a run of a drill, without what its ranks got of the CPU."""
    job(planted=[])(event)
    if event["kind"] == "measurements":
        event["measurements"] = [entry for entry in event["measurements"] if entry["name"] != "cpu_share"]


@pytest.mark.parametrize("name", ["pass", "killed"])
def test_every_verdict_of_a_disturbed_run_says_so(name: str) -> None:
    conclusion = disturbed(recorded(name, undisturbed))
    assert WORDS in card(conclusion, None, View())
    assert WORDS in html(conclusion)
    assert lines(conclusion, None, View(is_quiet=True))[0].count(WORDS) == 1
    assert f"disturbed: {document(conclusion)['acceptance']['disturbed']};" in WORDS
    assert document(disturbed(recorded(name, undisturbed), 0.8))["acceptance"]["disturbed"] == ""
    assert not any("disturbed" in line for line in card(disturbed(recorded(name, undisturbed), 0.8), None, View()))


def test_nodes_of_one_machine_share_its_cores() -> None:
    loaded = disturbed(recorded())
    two_nodes = replace(loaded.trial, nodes=loaded.trial.nodes * 2)
    of_one_machine = replace(loaded, trial=two_nodes, rulings={"network": Ruling(not_applicable=ONE_MACHINE)})
    assert cpu_shortage(of_one_machine).startswith("the nodes are one machine, whose ranks share its cores (rank 0 ")


def accepted(origin: str) -> Conclusion:
    """Return a full PASS that demands limits, with limits of that origin."""

    def limited(event: dict[str, Any]) -> None:
        plan(demands_limits=True, name="limits.toml")(event)
        if event["kind"] == "run":
            settings = event["plan"]["settings"]
            for check, name in (
                ("compute", "min_tflops"),
                ("memory", "min_copy_gbps"),
                ("collectives", "min_busbw_gbps"),
            ):
                settings[check][name] = [1e-9, f"plan limits.toml: {origin}"]

    return recorded(change=limited)


def test_a_pass_by_limits_of_disturbed_runs_says_so() -> None:
    conclusion = accepted(f"from 3 runs {DISTURBED_ORIGIN}: median 1, lowest 1 less half of it")
    assert (conclusion.verdict.status, conclusion.verdict.partial) == ("PASS", ())
    words = (
        "limits from runs beside other work, which find little: compute.min_tflops, memory.min_copy_gbps,"
        " collectives.min_busbw_gbps"
    )
    assert words in card(conclusion, None, View())
    assert words in html(conclusion)


def test_nobody_is_told_to_go_on_after_a_disturbed_acceptance() -> None:
    healthy = accepted("from 3 runs: median 1, lowest 1 less half of it")
    assert card(healthy, None, View())[-1].startswith(
        "next: after each repair or change, run: seatrial run limits.toml"
    )
    shown = card(disturbed(healthy), None, View())
    assert shown[-1].startswith("next: before you sign, on idle nodes, run: seatrial run limits.toml")


def test_a_disturbed_run_is_not_proposed_for_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the reports of earlier runs count, as after make run
    loaded = disturbed(recorded(change=plan(demands_limits=True)))
    shown = card(loaded, Path("reports/x/report.html"), View())[-1]
    assert shown.startswith("next: this run gives no limits; 0 of 3 runs for limits so far; on idle nodes, run: ")
    assert shown.endswith(", after 3: seatrial plan from RUN1 RUN2 RUN3 > limits.toml")


@pytest.mark.parametrize("pair", [5, {"a": 1}, "x", None, []])
def test_a_limit_of_a_foreign_plan_that_is_no_pair_is_none(pair: object) -> None:
    def change(event: dict[str, Any]) -> None:
        undisturbed(event)
        if event["kind"] == "run":
            event["plan"]["settings"] = {"compute": {"min_tflops": pair}}

    assert disturbance_lines(disturbed(recorded("killed", change))) == [WORDS]
