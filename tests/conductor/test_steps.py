"""From a plan to steps, and to the steps of the next generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from seatrial.checks.check import Check, Scope, Stage
from seatrial.conductor.steps import StepPlan, next_generation, of_plan
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.plan.model import Plan, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Params:
    timeout_s: float = 7.0


def _check(name: str) -> Check:
    def judge(evidence: Evidence, params: Any) -> Ruling:
        return Ruling()

    stages = (Stage(name="store", shares=bool), Stage(name="world")) if name == "bootstrap" else (Stage(),)
    scopes: dict[str, Scope] = {"bootstrap": "bootstrap", "compute": "alone"}
    return Check(
        name=name,
        scope=scopes.get(name, "world"),
        params=_Params,
        measure=lambda context, params: None,
        judge=judge,
        stages=stages,
    )


def _steps() -> tuple[StepPlan, ...]:
    settings = {
        "compute": {"timeout_s": Setting(value=7, origin="plan"), "rounds": Setting(value=3, origin="plan")},
        "bootstrap": {"timeout_s": Setting(value=60.0, origin="default")},
        "collectives": {},
        "training": {},
    }
    plan = Plan(
        name="x",
        checks=tuple(settings),
        not_asked={},
        deadline_s=Setting(value=60, origin="level x"),
        settings=settings,
    )
    return of_plan(plan, _check)


def test_each_stage_is_a_step_with_the_values_of_the_plan() -> None:
    steps = _steps()
    assert [(step.check, step.stage, step.shares is not None, step.last_stage) for step in steps] == [
        ("compute", "measure", False, True),
        ("bootstrap", "store", True, False),
        ("bootstrap", "world", False, True),
        ("collectives", "measure", False, True),
        ("training", "measure", False, True),
    ]
    assert steps[0].timeout_s == 7.0
    assert steps[0].params == {"timeout_s": 7, "rounds": 3}


@pytest.mark.parametrize(
    ("failed_at", "expected"),
    [
        (0, ["compute", "bootstrap", "bootstrap", "collectives", "training"]),
        (1, ["bootstrap", "bootstrap", "collectives", "training"]),
        (2, ["bootstrap", "bootstrap", "collectives", "training"]),
        (3, ["bootstrap", "bootstrap", "collectives", "training"]),
        (4, ["bootstrap", "bootstrap", "training"]),
    ],
)
def test_the_next_generation_forms_the_world_that_it_needs(failed_at: int, expected: list[str]) -> None:
    steps = _steps()
    assert [step.check for step in next_generation(steps, failed_at)] == expected


def test_no_world_without_need_and_no_repeats() -> None:
    compute = _steps()[0]
    steps = (compute, compute.repeated_by(3), compute.repeated_by(5))
    assert next_generation(steps, 2) == (compute,)


def test_a_repeat_is_by_one_rank_alone() -> None:
    again = _steps()[4].repeated_by(3)
    assert (again.check, again.scope, again.stage, again.ranks) == ("training", "alone", "repeat", (3,))
